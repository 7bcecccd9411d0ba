"""A case, and the decorator that registers its function; `catalogue` imports the modules of all cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ...spec.external_callbacks import callback_named, functions_of
from ...spec.promises import OF_ORDER, is_about

CaseFunction: TypeAlias = Callable[[Any], None]
"""Takes a `Case`, which has no anomalies afterwards if the cell passes."""

EVERY_LAYOUT = "jit pmap pjit shard_map"
"""One device; every device by pmap; one computation over all devices; every device by shard_map."""

ONE_OF_EACH = "id_tap call pure_callback io_callback debug_callback"
EVERY_KIND = f"{ONE_OF_EACH} io_callback_ordered buffer_callback"
OF_ARRAYS_OF_JAX = "pure_callback io_callback io_callback_ordered debug_callback debug_callback_ordered"
OF_ARRAYS = f"{ONE_OF_EACH} io_callback_ordered"
ORDERED = "id_tap call io_callback_ordered debug_callback_ordered"
EVERY_EFFECT = (
    "id_tap call io_callback io_callback_ordered debug_callback debug_callback_ordered buffer_callback_side_effect"
)
"""One of each kind that must run even if its result is unused; prints are taps and debug callbacks."""
WITH_RESULTS = "call pure_callback io_callback"
WITH_EFFECTS = "id_tap call io_callback_ordered debug_callback"

SLOWEST = 45.0
"""The deadline in seconds of a case that waits for an event, long enough for a busy machine."""

COLLECTIVE_TIMEOUT_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1",
    "--xla_cpu_collective_call_terminate_timeout_seconds=2",
)

_PROMISE_OF = {
    "id_tap": "H14",
    "id_print": "H14",
    "call": "H15",
    "pure_callback": "X2",
    "io_callback": "X3",
    "debug.callback": "X4",
    "buffer_callback": "B1",
    "dlpack_callback": "D1",
}
"""The promise about failures of each function."""


@dataclass(frozen=True)
class RegisteredCase:
    """One function in one layout with one callback."""

    kind: str
    layout: str
    callback: str
    promises: tuple[str, ...]
    run: CaseFunction
    xla_flags: tuple[str, ...] = ()
    minimum_devices: int = 1
    deadline: float | None = None
    """Seconds, if the usual deadline is needlessly long."""
    isolated: bool = False
    """Whether the case runs in a process of its own, because it may end, hang or poison its process."""
    needs: str = ""
    """A name in `jax` that the case uses and some releases lack: a function, or `stages.Compiled.output_formats`."""
    functions: str = ""
    """The functions of the implementation's module that the case uses, beside the callback: words."""
    processes: bool = False
    """Whether the case runs in several processes; otherwise it runs in one."""
    ends: tuple[int, ...] = ()
    """The processes that the case itself ends or stops; the outcome is how the others end."""
    exclusive: str = ""
    """Why the case needs a quiet machine, if it does: then no other cell of the run runs meanwhile."""

    @property
    def name(self) -> str:
        return f"case.{self.kind}.{self.layout}"

    def ineligible(self, device_count: int, processes: int = 1) -> str | None:
        if reason := self.ineligible_in(processes):
            return reason
        if device_count < self.minimum_devices:
            return f"needs {self.minimum_devices} devices, the topology has {device_count}"
        return None

    def ineligible_in(self, processes: int) -> str | None:
        if self.processes == (processes > 1):
            return None
        return "needs several processes" if self.processes else "runs in one process"


_ENTERED: dict[tuple[str, str], RegisteredCase] = {}


def enter(case: RegisteredCase) -> None:
    key = (case.callback, case.name)
    if key in _ENTERED:
        raise ValueError(f"{case.name} of {case.callback} is entered twice: give one of the two another kind")
    _ENTERED[key] = case


def entry(callback: str, name: str) -> RegisteredCase | None:
    """The registered case of a callback with this name, if an imported module has it."""
    return _ENTERED.get((callback, name))


def entered() -> tuple[RegisteredCase, ...]:
    """The registered cases, those of all imported modules."""
    return tuple(_ENTERED.values())


F = TypeVar("F", bound=CaseFunction)


def case(
    layouts: str, callbacks: str, promises: str = "", *, also: str = "", kind: str = "", **options: Any
) -> Callable[[F], F]:
    """Register a function for every combination of these layouts and callbacks, each a list of words.

    The kind is the function's name. The promises are each callback's promise about failures, and those in `also`; a
    promise that names other functions is left out. The options are fields of `RegisteredCase`. A case that shares its
    process with other cells always has a deadline.
    """
    options = {"deadline": None if options.get("isolated") else SLOWEST, **options}

    def enter_all(function: F) -> F:
        for name in callbacks.split():
            callback = callback_named(name)
            of_callback = promises or f"{_PROMISE_OF.get(callback.function, ' '.join(callback.promises))} {also}"
            about = (p for p in of_callback.split() if is_about(p, callback.function, functions_of(callback)))
            cited = tuple(p for p in about if callback.ordered or p != OF_ORDER)
            if not cited:
                raise ValueError(f"{function.__name__} of {name} cites no promise about {callback.function}")
            for layout in layouts.split():
                enter(RegisteredCase(kind or function.__name__, layout, name, cited, function, **options))
        return function

    return enter_all
