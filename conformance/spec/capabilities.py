"""The capabilities and profiles of a platform, and the cells that show each. This imports neither JAX nor NumPy.

A vendor claims capabilities by their names, for all implementations or, as `hostcb:ordered`, for one. Profiles are
earned: `bundles.earning` says how. The id of a cell says what it shows, so what a result claims of its cells does not
count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .callbacks import Callback, DeviceChoice
from .depths import Depth
from .external_callbacks import ALL_CALLBACKS
from .topology_names import UnknownTopologyError, parts_of

PLAIN_ELEMENT = "float32"
"""The type of elements in programs whose ids name no data."""

ERROR_CASES = (
    *("raises", "raises_unseen", "raises_on_one", "raises_before_collective", "special_exceptions", "has_cause"),
    *("wrong_shape", "wrong_dtype", "wrong_count", "wrong_after_right", "none", "error_mark"),
)
"""The cases in which a callback fails, and the program must end with its error."""


@dataclass(frozen=True)
class Shown:
    implementation: str
    callback: Callback | None
    """None for a callback that this version of the suite, without the packages of its run, does not know."""
    names: tuple[str, ...]
    """The transforms of a program; of a case, `case` and its kind."""
    element: str
    """The type of the elements of its operands."""
    processes: int
    devices: int
    """The number of devices that the program uses; placements that use fewer say so in their names."""
    depth: Depth

    @property
    def case(self) -> str:
        return self.names[1] if self.names[0] == "case" else ""

    @property
    def program(self) -> bool:
        return self.names[0] not in ("case", "table")


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
    part = any(option.startswith("part") for option in where.options)
    devices = 1 if "last" in where.options else where.devices // 2 if part else where.devices
    names = tuple(composition.split("."))
    return Shown(implementation, callback, names, element, where.processes, devices, where.depth)


@dataclass(frozen=True)
class Capability:
    name: str
    words: str
    shows: Callable[[Shown], bool]
    """Whether a cell shows it. A program that must be refused shows nothing."""
    of_functions: bool = False
    """Whether it is about functions themselves, and not about what they can be used with."""
    unit: str = "program"
    """What it counts: programs alone, cases alone, or all cells."""


def _transform(*names: str) -> Callable[[Shown], bool]:
    return lambda shown: shown.program and bool({*names} & {*shown.names})


def _function(name: str) -> Callable[[Shown], bool]:
    return lambda shown: shown.program and shown.callback is not None and shown.callback.function == name


_MAPS = {"pmap", "pjit", "shard_map"}


def _ordered(shown: Shown) -> bool:
    callback = shown.callback
    return callback is not None and (callback.ordered or any(part.ordered for part in callback.parts))


def _sharded(shown: Shown) -> bool:
    callback = shown.callback
    placed = callback is not None and (callback.partitioned or callback.device_choice is DeviceChoice.LAST)
    return shown.devices > 1 and (placed or bool(_MAPS & {*shown.names}))


def _zero_copy(shown: Shown) -> bool:
    return shown.callback is not None and shown.callback.function in ("buffer_callback", "dlpack_callback")


def _multi_process(shown: Shown) -> bool:
    return shown.processes > 1


def _programs(shows: Callable[[Shown], bool]) -> Callable[[Shown], bool]:
    return lambda shown: shown.program and shows(shown)


CORE, MULTI_PROCESS = "core", "multi-process"

_TRAITS = {"ordered": _ordered, "sharded": _sharded, "zero-copy": _zero_copy}

PROFILES = {
    CORE: "programs on one device, with the callbacks that are neither ordered nor get buffers",
    "ordered": "the callbacks that run in order: taps, calls, and the ordered callbacks of JAX",
    "sharded": "pmap, pjit and shard_map over several devices of one process",
    "zero-copy": "buffer and DLPack callbacks",
    MULTI_PROCESS: "everything over several processes",
}
"""What each profile holds. A cell of one process may belong to `ordered`, `sharded` and `zero-copy` at once."""


def profiles_of(shown: Shown) -> tuple[str, ...]:
    """The profiles to which a cell belongs; none for a callback that the suite does not know."""
    if shown.callback is None:
        return ()
    if _multi_process(shown):
        return (MULTI_PROCESS,)
    return tuple(name for name, has in _TRAITS.items() if has(shown)) or (CORE,)


FURTHER = (
    Capability("ordered", "callbacks in the order of the program", _programs(_ordered)),
    Capability("sharded", "callbacks over several devices: pmap, pjit, shard_map", _programs(_sharded)),
    Capability("shard_map", "callbacks inside of shard_map", _transform("shard_map")),
    Capability("pmap", "callbacks inside of pmap", _transform("pmap")),
    Capability("zero-copy", "buffers of the device, and DLPack", _programs(_zero_copy), of_functions=True),
    Capability("vmap", "callbacks under vmap", _transform("vmap")),
    Capability("grad", "derivatives", _transform("grad", "jvp", "remat", "custom_jvp", "custom_vjp")),
    Capability("loops", "scan, fori_loop, while_loop", _transform("scan", "fori_loop", "while_body", "while_cond")),
    Capability("cond", "branches", _transform("cond")),
    Capability(
        "element-types",
        "operands of other types than float32",
        lambda shown: shown.program and shown.element != PLAIN_ELEMENT,
    ),
    Capability(
        "errors", "a callback's exception ends its program", lambda shown: shown.case in ERROR_CASES, unit="case"
    ),
    Capability("multi-process", "devices of several processes", _multi_process, unit="cell"),
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
