"""The capabilities of a platform, and the cells that show each. This module imports neither JAX nor NumPy.

A vendor claims them by these names, for all implementations or, as `hostcb:ordered`, for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .callbacks import Callback
from .depths import Depth
from .external_callbacks import ALL_CALLBACKS
from .topology_names import UnknownTopologyError, parts_of

PLAIN_ELEMENT = "float32"
"""The type of elements in programs whose ids name no data."""

ERROR_FAULTS = (
    *("raises", "raises_unseen", "raises_on_one", "raises_before_collective", "special_exceptions", "has_cause"),
    *("wrong_shape", "wrong_dtype", "wrong_count", "wrong_after_right", "none", "error_mark"),
)
"""The faults in which a callback fails, and the program must end with its error."""


@dataclass(frozen=True)
class Shown:
    """What a cell shows, by its id."""

    implementation: str
    callback: Callback | None
    """None for a callback that this version of the suite, without the packages of its run, does not know."""
    names: tuple[str, ...]
    """The transforms of a program; of a fault, `fault` and its kind."""
    element: str
    """The type of the elements of its operands."""
    processes: int
    depth: Depth

    @property
    def fault(self) -> str:
        return self.names[1] if self.names[0] == "fault" else ""

    @property
    def program(self) -> bool:
        return self.names[0] not in ("fault", "table")


def shown_by(cell_id: str) -> Shown | None:
    """What the cell with this id shows; None if it is the id of no cell."""
    parts = cell_id.split("/")
    if len(parts) != 4:
        return None
    implementation, name, program, topology = parts
    composition, _, data = program.partition("+")
    try:
        where = parts_of(topology)
    except UnknownTopologyError:
        return None
    callback = next((one for one in ALL_CALLBACKS if one.name == name), None)
    element = data.partition("-")[0] or PLAIN_ELEMENT
    return Shown(implementation, callback, tuple(composition.split(".")), element, where.processes, where.depth)


@dataclass(frozen=True)
class Capability:
    name: str
    words: str
    shows: Callable[[Shown], bool]
    """Whether a cell shows it. A program that must be refused shows nothing."""
    of_functions: bool = False
    """Whether it is about functions themselves, and not about what they can be used with."""


def _transform(*names: str) -> Callable[[Shown], bool]:
    return lambda shown: shown.program and bool({*names} & {*shown.names})


def _function(name: str) -> Callable[[Shown], bool]:
    return lambda shown: shown.program and shown.callback is not None and shown.callback.function == name


def _of_kind(wanted: Callable[[Callback], bool]) -> Callable[[Shown], bool]:
    return lambda shown: shown.program and shown.callback is not None and wanted(shown.callback)


FURTHER = (
    Capability("ordered", "callbacks in the order of the program", _of_kind(lambda callback: callback.ordered)),
    Capability("sharded", "jit over a mesh", _transform("pjit")),
    Capability("shard_map", "callbacks inside of shard_map", _transform("shard_map")),
    Capability("pmap", "callbacks inside of pmap", _transform("pmap")),
    Capability(
        "zero-copy",
        "buffers of the device, and DLPack",
        _of_kind(lambda callback: callback.function in ("buffer_callback", "dlpack_callback")),
        of_functions=True,
    ),
    Capability("vmap", "callbacks under vmap", _transform("vmap")),
    Capability("grad", "derivatives", _transform("grad", "jvp", "remat", "custom_jvp", "custom_vjp")),
    Capability("loops", "scan, fori_loop, while_loop", _transform("scan", "fori_loop", "while_body", "while_cond")),
    Capability("cond", "branches", _transform("cond")),
    Capability(
        "element-types",
        "operands of other types than float32",
        lambda shown: shown.program and shown.element != PLAIN_ELEMENT,
    ),
    Capability("errors", "a callback's exception ends its program", lambda shown: shown.fault in ERROR_FAULTS),
    Capability("multi-process", "devices of several processes", lambda shown: shown.processes > 1),
)


def capabilities() -> tuple[Capability, ...]:
    """Each kind of callback, and what it can be used with. Packages may add callbacks."""
    functions = dict.fromkeys(callback.function for callback in ALL_CALLBACKS if not callback.parts)
    return (*(Capability(name, "", _function(name), of_functions=True) for name in functions), *FURTHER)


def why_no_claim(claim: str) -> str | None:
    """The reason if this is the name of no capability; the callbacks of packages are not looked up."""
    implementation, colon, name = claim.rpartition(":")
    if colon and not implementation:
        return f"{claim!r} names no implementation before the colon"
    names = [capability.name for capability in capabilities()]
    return None if name in names else f"{name!r} is no capability; there are {', '.join(names)}"
