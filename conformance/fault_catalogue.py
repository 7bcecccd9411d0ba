"""The fault cells: callbacks that misbehave, and what the suite plants where.

This is the list alone, readable without JAX; `conformance.faults` runs them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

LAYOUTS = ("jit", "pmap", "pjit", "shard_map")
"""One device; every device by pmap; one computation over all devices; every device by shard_map."""

BROKEN_RESULTS = ("raises", "wrong_shape", "wrong_dtype", "wrong_tree", "none", "error_mark")

COLLECTIVE_TIMEOUT_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=2",
    "--xla_cpu_collective_call_terminate_timeout_seconds=4",
)


@dataclass(frozen=True)
class Fault:
    kind: str
    layout: str
    callback: str
    promises: tuple[str, ...]
    xla_flags: tuple[str, ...] = ()
    minimum_devices: int = 1
    deadline: float | None = None
    """Seconds, where waiting as long as for other cells would tell no more."""

    @property
    def name(self) -> str:
        return f"fault.{self.kind}.{self.layout}"

    def ineligible(self, device_count: int) -> str | None:
        if device_count < self.minimum_devices:
            return f"needs {self.minimum_devices} devices, the topology has {device_count}"
        return None


def _host_callback_faults() -> tuple[Fault, ...]:
    faults = [
        Fault(kind, layout, "call", ("H15",))
        for kind, layout in itertools.product((*BROKEN_RESULTS, "legitimate_mark"), LAYOUTS)
    ]
    faults += [Fault("raises", layout, "id_tap", ("H14",)) for layout in LAYOUTS]
    faults += [
        Fault("runs_jax", layout, callback, ("H9", "H10"))
        for layout, callback in itertools.product(("pmap", "pjit"), ("id_tap", "call"))
    ]
    faults += [
        Fault("keyboard_interrupt", "jit", "id_tap", ("H14",)),
        Fault("pending_at_exit", "pmap", "id_tap", ("H17",)),
        Fault(
            "raises_before_collective",
            "pmap",
            "call",
            ("H15",),
            xla_flags=COLLECTIVE_TIMEOUT_FLAGS,
            minimum_devices=2,
        ),
        Fault("starts_callbacks_on_all", "pmap", "call", ("H9", "H15"), minimum_devices=2),
        Fault("runs_jax_on_all", "pmap", "call", ("H9",), minimum_devices=2, deadline=10.0),
        *(Fault("slow", layout, "id_tap", ("H13",)) for layout in ("jit", "pmap")),
        Fault("slow_in_another_thread", "jit", "id_tap", ("H13",)),
        *(Fault("starts_callbacks", "jit", callback, ("H12",), deadline=10.0) for callback in ("id_tap", "call")),
        *(Fault("is_forgotten", "jit", callback, ("H18",)) for callback in ("id_tap", "call")),
        Fault("nested_batch", "jit", "id_tap", ("H7",)),
        *(
            Fault(kind, "jit", callback, (promise,))
            for callback, promise in (("id_tap", "H1"), ("call", "H3"))
            for kind in ("dtypes", "shapes", "trees")
        ),
        *(Fault("equal_operands", "jit", callback, ("H4",)) for callback in ("id_tap", "call")),
    ]
    return tuple(faults)


def _external_faults() -> tuple[Fault, ...]:
    effects = ("io_callback", "io_callback_ordered")
    returning = (("pure_callback", "X2"), *((name, "X3") for name in effects), ("buffer_callback", "B1"))
    told = (("pure_callback", "X2"), ("io_callback", "X3"), ("debug_callback", "X4"))
    faults = [Fault("raises", "jit", callback, (promise, "H15")) for callback, promise in returning]
    faults += [
        Fault("raises", "jit", "dlpack_callback", ("D1", "H15")),
        Fault("raises_unseen", "jit", "debug_callback", ("X4",)),
        Fault("raises_unseen", "jit", "debug_callback_ordered", ("X4",)),
        Fault("returns_a_value", "jit", "buffer_callback", ("B1",)),
    ]
    faults += [
        Fault("raises_on_one", "shard_map", callback, (promise,), minimum_devices=2)
        for callback, promise in (*told, ("io_callback_ordered", "X3"))
    ]
    for callback, promise in told[:2]:
        kinds = ("wrong_shape", "wrong_dtype", "wrong_count", "has_cause")
        faults += [Fault(kind, "jit", callback, (promise, "H15")) for kind in kinds]
    faults += [
        Fault(kind, "jit", callback, (promise, "H11"))
        for callback, promise in told
        for kind in ("keeps_its_operand", "changes_its_operand")
    ]
    faults += [
        Fault(kind, "pjit", f"{callback}_sharding", (promise, "X5"), minimum_devices=2)
        for callback, promise in told[:2]
        for kind in ("result_reaches_all", "names_its_device", "unknown_device")
    ]
    faults += [
        Fault("result_reaches_all", "pjit", callback, (promise,), minimum_devices=2) for callback, promise in told[:2]
    ]
    faults += [
        Fault("loop_without_operands", layout, "io_callback_ordered", ("X3",), minimum_devices=2)
        for layout in ("pmap", "shard_map")
    ]
    faults += [Fault("cond_without_results", "jit", "io_callback_ordered", ("X3",))]
    faults += [Fault("equal_operands", "jit", callback, ("X3",)) for callback in effects]
    faults += [
        Fault("equal_operands", "jit", "debug_callback", ("X4",)),
        Fault("equal_operands", "jit", "buffer_callback_side_effect", ("B4",)),
    ]
    return tuple(faults)


EXTERNAL_FAULTS = _external_faults()
FAULTS = (*_host_callback_faults(), *EXTERNAL_FAULTS)
