"""A lowered program as a small record: its functions, and of their operations those that callbacks need.

`worker/stablehlo.py` reads such a record from JAX's module; `oracle/lowered_checks.py` judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True)
class Value:
    number: int
    type: str
    """For example `tensor<4xf32>`."""

    @property
    def is_token(self) -> bool:
        return self.type == "!stablehlo.token"


class Placement(Enum):
    """What a sharding says of the device of an operation with side effects."""

    ONE_DEVICE = "one device"
    MANUAL = "manual"
    EVERYWHERE = "everywhere"


@dataclass(frozen=True)
class Sharding:
    placement: Placement
    device: int | None = None
    """The position of the one device."""
    text: str = ""


@dataclass(frozen=True)
class Layouts:
    """The order of the dimensions in memory, the fastest first, of each operand and of each result."""

    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Channel:
    number: int
    type: int
    """2 from the device to the host, 3 from the host to the device."""


@dataclass(frozen=True)
class Operation:
    name: str
    """For example `stablehlo.custom_call`."""
    operands: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    blocks: tuple[Block, ...] = ()
    """One for each region."""
    callee: str = ""
    """The function that a call calls, or the target of a custom call."""
    site: str | None = None
    """The callback's site in the program; None for other operations."""
    side_effect: bool = False
    api_version: int = 0
    typed: bool = False
    """Whether a custom call passes its attributes as a typed dictionary, as the typed FFI wants them."""
    sharding: Sharding | None = None
    layouts: Layouts | None = None
    aliases: tuple[tuple[int, int], ...] = ()
    """Operand and result that share a buffer."""
    channel: Channel | None = None
    host_transfer: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    """The frontend attributes of a transfer."""

    @property
    def is_transfer(self) -> bool:
        return self.name in ("stablehlo.send", "stablehlo.recv")

    @property
    def shown(self) -> str:
        """The operation in a witness."""
        at = f" of {self.site!r}" if self.site else ""
        if self.channel:
            return f"{self.name.removeprefix('stablehlo.')} on channel {self.channel.number}{at}"
        return f"{self.callee or self.name}{at}"


@dataclass(frozen=True)
class Block:
    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Callback:
    """What the lowering has registered with the runtime for a callback of sends and receives."""

    sends: tuple[int, ...]
    """The channels of its operands."""
    receives: tuple[int, ...]
    operands: tuple[str, ...]
    """Types, as `Value` has them."""
    results: tuple[str, ...]


@dataclass(frozen=True)
class Module:
    functions: Mapping[str, Block]
    devices: int
    """The number of devices that the compiler spreads it over."""
    callbacks: Sequence[Callback] | None = None
    """None where the lowering does not say."""

    @property
    def operations(self) -> Iterator[Operation]:
        """All operations, also inside of others."""
        for block in self.functions.values():
            yield from _inside(block)


def _inside(block: Block) -> Iterator[Operation]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _inside(inner)
