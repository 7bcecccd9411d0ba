"""The promises of each host callback, as far as a program can observe them.

A `Callback` is the specification of one public function with one set of options. The semantic model
and the checkers read it. An implementation defines separately how to call the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

CONSTANT_OPERAND = 5.0
"""An operand that no transform batches: its entry in `batch_dims` is `None`."""

RETURNED_OFFSET = 1.0
"""A callback that returns a new value adds this number to its operand."""

SITES = ("first", "unused", "last", "forward_end", "cotangent", "tangent")
"""The places in a program that run the callback."""

UNUSED_SITES = ("unused", "forward_end", "cotangent")
"""The sites at which the program does not use the callback's result."""


class Batching(Enum):
    """The effect of one vmap on the callback."""

    STACKED = "stacked"
    """One callback with the whole batch, and an entry in `transforms`."""
    REFUSED = "refused"
    SEQUENTIAL = "sequential"
    """One callback for each batch element."""
    EXPAND_DIMS = "expand_dims"
    """One callback; operands without batch get a leading axis of size one."""
    BROADCAST_ALL = "broadcast_all"
    """One callback; operands without batch are repeated."""


VMAP_METHODS = {
    None: Batching.REFUSED,
    "sequential": Batching.SEQUENTIAL,
    "sequential_unrolled": Batching.SEQUENTIAL,
    "expand_dims": Batching.EXPAND_DIMS,
    "broadcast_all": Batching.BROADCAST_ALL,
}


class DeviceChoice(Enum):
    """Which device of a computation over a mesh runs the callback."""

    FIRST = "first"
    LAST = "last"


class Runs(Enum):
    """How often one evaluation of the callback runs the host's function."""

    ONCE = "once"
    IF_NEEDED = "if_needed"
    """At least once if the program needs the result; otherwise the compiler chooses."""


@dataclass(frozen=True)
class Refusal:
    """The refusal of a transform: one of these errors, with one of these words in its text."""

    errors: tuple[type[Exception], ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Refusals:
    """The transforms that a callback refuses; None for a transform that works."""

    differentiation: Refusal | None = None
    """A differentiated value reaches the callback."""
    vmap: Refusal | None = None
    batched_predicate: Refusal | None = None
    """The callback is in a cond or a while_loop with a predicate that vmap has batched."""
    checkpoint: Refusal | None = None
    """The callback is in a checkpointed function that is differentiated, even if its operand is not differentiated."""
    mesh: Refusal | None = None
    """One computation spans several devices."""

    @property
    def batching(self) -> Batching:
        """The effect of vmap on a callback without `vmap_method`."""
        return Batching.REFUSED if self.vmap else Batching.SEQUENTIAL


@dataclass(frozen=True)
class Callback:
    name: str
    function: str
    """The public name of the function, without the module."""
    promises: tuple[str, ...]
    batching: Batching
    refusals: Refusals = Refusals()
    runs: Runs = Runs.ONCE
    ordered: bool = True
    """Whether callbacks run in program order on each device."""
    returns_new_value: bool = False
    receives_device: bool = False
    receives_transforms: bool = False
    takes_tree: bool = False
    device_choice: DeviceChoice = DeviceChoice.FIRST
    vmap_method: str | None = None
    partitioned: bool = False
    """Whether a computation over a mesh calls back from every device, with its own shard."""
    aliased: bool = False
    """Whether the result uses the operand's buffer."""
    in_place: bool = False
    """Whether the host function gets the buffers of its results, and writes to them."""
    parts: tuple[Callback, ...] = ()
    """The callbacks of a mixture of kinds: from site to site, the next one runs."""

    @property
    def prints(self) -> bool:
        """Whether the operand is visible only as printed text."""
        return self.function in ("id_print", "debug.print")

    @property
    def on_every_device(self) -> bool:
        """Whether every device of a computation over a mesh calls back with the whole operand."""
        return self.function in ("buffer_callback", "dlpack_callback")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the function that are not the defaults, without the choice of a device."""
        ordered = self.ordered and self.function in ("io_callback", "debug.callback", "debug.print")
        options = {
            "vmap_method": self.vmap_method,
            "ordered": ordered,
            "partitioned": self.partitioned,
            "has_side_effect": self.on_every_device and self.runs is Runs.ONCE,
            "input_output_aliases": {0: 0} if self.aliased else None,
            "in_place": self.in_place and self.function == "dlpack_callback",
            "tap_with_device": self.receives_device and self.function == "id_tap",
            "call_with_device": self.receives_device and self.function == "call",
        }
        return {name: value for name, value in options.items() if value}

    @property
    def linear(self) -> bool:
        """Whether it returns its operand and has no other: a rule may then tap a tangent, which JAX transposes."""
        return self.receives_transforms and not (self.returns_new_value or self.takes_tree)

    @property
    def differentiable(self) -> bool:
        return self.refusals.differentiation is None

    @property
    def recomputed(self) -> bool:
        """Whether checkpoint runs the callback again; it saves the result of a call instead."""
        return self.differentiable

    def at(self, site: str) -> Callback:
        """The callback that runs at a site: this one, or one part of a mixture."""
        return self.parts[SITES.index(site) % len(self.parts)] if self.parts else self


_CALL_REFUSES = Refusals(
    differentiation=Refusal((NotImplementedError,), ("custom_jvp", "custom_vjp")),
    vmap=Refusal((NotImplementedError,), ("vmap_method", "id_tap", "custom_vmap")),
)


_tap = partial(Callback, function="id_tap", batching=Batching.STACKED, receives_transforms=True)
_call = partial(Callback, function="call", batching=Batching.REFUSED, refusals=_CALL_REFUSES)
_LAST = DeviceChoice.LAST

HOST_CALLBACKS: tuple[Callback, ...] = (
    _tap("id_tap", promises=("H1",)),
    _tap("id_tap_result", promises=("H1",), returns_new_value=True),
    _tap("id_tap_device", promises=("H1", "H9"), receives_device=True),
    _tap("id_tap_tree", promises=("H1", "H7"), takes_tree=True),
    _tap("id_tap_device_index", promises=("H10",), receives_device=True, device_choice=_LAST),
    _tap("id_print", function="id_print", promises=("H2",)),
    _call("call", promises=("H3", "H8"), returns_new_value=True),
    _call("call_no_result", promises=("H3",)),
    _call("call_device", promises=("H3", "H9"), returns_new_value=True, receives_device=True),
    *(
        _call(
            f"call_{method}",
            promises=("H8",),
            batching=batching,
            returns_new_value=True,
            takes_tree=True,
            vmap_method=method,
        )
        for method, batching in VMAP_METHODS.items()
        if method
    ),
)
"""The callbacks of `jax.experimental.host_callback`, and hostcb's variants of them."""
