"""The fault cells: callbacks that misbehave, and what the suite plants where.

This is the list alone, readable without JAX; `conformance.faults` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYOUTS = ("jit", "pmap", "pjit", "shard_map")
"""One device; every device by pmap; one computation over all devices; every device by shard_map."""

BROKEN_RESULTS = ("raises", "wrong_shape", "wrong_dtype", "wrong_tree", "none", "error_mark")

COLLECTIVE_TIMEOUT_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1",
    "--xla_cpu_collective_call_terminate_timeout_seconds=2",
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
    isolated: bool = True
    """Whether it gets a process of its own: it may end, hang or poison the one that it is in."""

    @property
    def name(self) -> str:
        return f"fault.{self.kind}.{self.layout}"

    def ineligible(self, device_count: int) -> str | None:
        if device_count < self.minimum_devices:
            return f"needs {self.minimum_devices} devices, the topology has {device_count}"
        return None


def _host_callback_faults() -> tuple[Fault, ...]:
    every_layout = " ".join(LAYOUTS)
    faults = [
        *(fault for kind in (*BROKEN_RESULTS, "legitimate_mark") for fault in _of(kind, every_layout, ("call",))),
        *_of("raises", every_layout, ("id_tap",)),
        *_of("runs_jax", "pmap pjit", ("id_tap", "call"), "H9", "H10"),
        *(
            fault
            for callback, promise in (("id_tap", "H1"), ("call", "H3"))
            for kind in ("dtypes", "shapes", "trees")
            for fault in _of(kind, "jit", (callback,), promise)
        ),
        *_of("equal_operands", "jit", ("id_tap", "call"), "H4"),
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
    faults += [
        Fault(
            "raises_before_collective",
            "shard_map",
            callback,
            (promise,),
            xla_flags=COLLECTIVE_TIMEOUT_FLAGS,
            minimum_devices=2,
        )
        for callback, promise in told[:2]
    ]
    for callback, promise in told[:2]:
        kinds = ("wrong_shape", "wrong_dtype", "wrong_count", "has_cause")
        faults += [Fault(kind, "jit", callback, (promise, "H15")) for kind in kinds]
    for callback, promise in told:
        for kind in ("keeps_its_operand", "changes_its_operand"):
            faults += _of(kind, "jit", (callback,), promise, "H11")
    for callback, promise in told[:2]:
        for kind in ("result_reaches_all", "names_its_device", "unknown_device"):
            faults += _of(kind, "pjit", (f"{callback}_sharding",), promise, "X5", minimum_devices=2)
        faults += _of("result_reaches_all", "pjit", (callback,), promise, minimum_devices=2)
    faults += [
        Fault("loop_without_operands", layout, "io_callback_ordered", ("X3",), minimum_devices=2)
        for layout in ("pmap", "shard_map")
    ]
    faults += [Fault("cond_without_results", "jit", "io_callback_ordered", ("X3",))]
    faults += [
        *_of("equal_operands", "jit", effects, "X3"),
        *_of("equal_operands", "jit", ("debug_callback",), "X4"),
        *_of("equal_operands", "jit", ("buffer_callback_side_effect",), "B4"),
    ]
    return tuple(faults)


RUNTIME_TARGETS = ("ffi_target", "buffer_target")
"""What JAX's callbacks are made of on CPU, and hostcb's; it counts as JAX's."""

_RAW_RESULTS = {
    "ffi_target": (
        *("right_result", "short_result", "long_result", "longest_result", "error_mark", "legitimate_mark"),
        *("wrong_dtype", "more_dimensions", "no_result"),
    ),
    # To this one, whose handler writes into the results' memory, less can be done.
    "buffer_target": ("short_result", "long_result", "error_mark", "wrong_dtype", "no_result"),
}

_PROMISE_OF = {
    "id_tap": "H14",
    "call": "H15",
    "pure_callback": "X2",
    "io_callback": "X3",
    "io_callback_ordered": "X3",
    "debug_callback": "X4",
    "buffer_callback": "B1",
    "dlpack_callback": "D1",
}
_EVERY_KIND = tuple(_PROMISE_OF)
_ONE_OF_EACH = ("id_tap", "call", "pure_callback", "io_callback", "debug_callback")
SLOWEST = 45.0
"""Seconds that a fault which waits for something may take on a busy machine."""


def _of(kind: str, layouts: str, callbacks: tuple[str, ...], *promises: str, minimum_devices: int = 1) -> list[Fault]:
    """A fault that costs its process nothing unless it is found, in every combination."""
    return [
        Fault(
            kind,
            layout,
            callback,
            promises or (_PROMISE_OF[callback],),
            minimum_devices=minimum_devices,
            deadline=SLOWEST,
            isolated=False,
        )
        for callback in callbacks
        for layout in layouts.split()
    ]


def _common_faults() -> tuple[Fault, ...]:
    """What is the same for callbacks of several kinds."""
    with_results = ("call", "pure_callback", "io_callback", "io_callback_ordered", "dlpack_callback")
    faults = [
        *_of("raises_on_one", "pmap shard_map", ("id_tap", "call")),
        *_of("special_exceptions", "jit", _EVERY_KIND),
        *_of("wrong_after_right", "jit", with_results),
        *_of("none", "jit", ("pure_callback", "io_callback", "dlpack_callback")),
        *_of("error_mark", "jit", ("pure_callback", "io_callback", "dlpack_callback")),
        *_of("legitimate_mark", "jit", ("pure_callback", "io_callback")),
        *_of("wrong_shape", "jit", ("dlpack_callback",)),
        *_of("wrong_dtype", "jit", ("dlpack_callback",)),
        *_of("wrong_count", "jit", ("dlpack_callback",)),
        *_of("keeps_its_operand", "jit", ("id_tap", "call"), "H11"),
        *_of("changes_its_operand", "jit", ("id_tap", "call"), "H11"),
        *_of("blocks_until_released", "jit", _EVERY_KIND),
        *_of("blocks_until_released", "pmap", ("id_tap", "call", "io_callback")),
        *_of("two_threads", "jit", _EVERY_KIND),
        *_of("two_threads", "pmap", ("id_tap", "call", "io_callback_ordered")),
        *_of("order_across_threads", "pmap", ("id_tap", "call"), "H5"),
        *_of("runs_jax_inside", "jit", _EVERY_KIND),
        *_of("runs_pmap", "jit", _ONE_OF_EACH),
        *_of("runs_mesh", "jit", _ONE_OF_EACH),
        *_of("starts_others", "jit", _EVERY_KIND[2:]),
        *_of("forks", "jit", _ONE_OF_EACH),
        *_of("signals", "jit", _ONE_OF_EACH),
        *_of("os_exit", "pmap", _ONE_OF_EACH),
        *_of("running_at_exit", "jit pjit pmap shard_map", ("pure_callback",)),
        *_of("running_at_exit", "pmap", ("call", "io_callback", "debug_callback")),
        # Of taps and calls, and of what hostcb has for them.
        *_of("several_fail", "pmap shard_map", ("id_tap",), "H13"),
        *_of("fails_before_calls", "jit pmap", ("id_tap",), "H14"),
        *_of("full_queue", "jit", ("id_tap",), "H12"),
        *_of("stops_and_starts", "jit pmap", ("id_tap",), "H17"),
        *_of("flags", "jit", ("id_tap",), "H16"),
    ]
    faults += [
        *(Fault("keeps_its_view", "jit", callback, (_PROMISE_OF[callback],)) for callback in _EVERY_KIND[-2:]),
        Fault("fails_and_is_kept", "jit", "buffer_callback", ("B1",)),
    ]
    return tuple(faults)


def _reported_bugs() -> tuple[Fault, ...]:
    """Programs of public reports: see `conformance.reported_bugs`."""
    effects = ("id_tap", "call", "io_callback_ordered", "debug_callback")
    with_results = ("call", "pure_callback", "io_callback")
    faults = [
        *_of("changing_device_sets", "shard_map", ("id_tap", "call", "io_callback_ordered")),
        *_of("loop_with_large_carry", "jit", effects),
        *_of("condition_with_frozen_carry", "jit", effects),
        *_of("python_number", "jit", with_results[1:]),
        *_of("strided_results", "jit", with_results[1:]),
        *_of("scan_without_operands", "jit", ("id_tap", "debug_callback", "debug_callback_ordered"), "H4", "X4"),
        *_of("implicit_derivative", "jit", effects),
        *_of("eagerly_forgotten", "jit", _ONE_OF_EACH),
        *_of("dropped_while_running", "pmap", _ONE_OF_EACH),
        *_of("collects_garbage", "pmap", _ONE_OF_EACH),
        *_of("mapped", "jit", with_results),
        *_of("shape_first", "jit", ("id_tap", "io_callback", "debug_callback")),
        # On one device there is no mesh to name.
        *_of("explicit_mesh", "pjit", with_results, minimum_devices=2),
        *_of("reuses_its_result", "jit pjit", (*with_results, "dlpack_callback")),
        *_of("without_tracing", "jit", _ONE_OF_EACH),
        *_of("wide_results", "jit", with_results),
        *_of("decomposes_on_the_host", "jit", ("call",)),
        *_of("text_in_format", "jit", ("debug_print",), "X4"),
        *_of("malformed_format", "jit", ("debug_print",), "X4"),
        *_of("shared_executables", "jit", with_results[:2]),
    ]
    faults += [
        Fault("reads_large_operand", "pmap", callback, (promise,), minimum_devices=2, deadline=15.0)
        for callback, promise in (("call", "H9"), ("pure_callback", "X2"))
    ]
    return tuple(faults)


def _raw_faults() -> tuple[Fault, ...]:
    return tuple(
        fault
        for target, kinds in _RAW_RESULTS.items()
        for kind in kinds
        for fault in _of(kind, "jit", (target,), "H15")
    )


FAULTS = (*_host_callback_faults(), *_external_faults(), *_common_faults(), *_reported_bugs(), *_raw_faults())
