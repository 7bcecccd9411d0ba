"""The cells of topologies with several processes, and the combinations that have no meaning there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ..cases.harness.catalogue import all_cases
from ..implementations import callbacks_asked_of, callbacks_drawn_for
from ..model.programs import Program
from ..spec.callbacks import Callback, DeviceChoice
from ..spec.topology import Topology
from .cells import CaseCell, Cell, Plan, ProgramCell
from .eligibility import ineligible
from .jax_limits import limit_of_devices
from .sampling import is_only_batched

USUAL = Topology("cpu", 4, processes=2)
"""The topology of a usual run: two processes of two devices show whatever more of them show."""

EVERYWHERE = ("pjit", "shard_map", "pmap")
"""Each callback is tried under these, some on one device of each process, and some with a transform inside."""

ON_ONE_DEVICE = ("jit",)

LOCAL = (
    "id_tap",
    "id_tap_device",
    "call",
    "call_device",
    "pure_callback",
    "io_callback_ordered",
    "debug_callback",
    "debug_callback_ordered",
    "buffer_callback",
)
"""Callbacks that are tried on one device of each process."""

FURTHER = (
    "pjit.scan",
    "shard_map.scan",
    "pmap.scan",
    "pjit.vmap",
    "shard_map.vmap",
    "pjit.while_body",
    "shard_map.while_body",
    "pmap.while_body",
)

WITH_FURTHER = ("id_tap", "call", "io_callback_ordered", "debug_callback")


def plan_over_processes(implementations: Sequence[str], topologies: Sequence[Topology]) -> Plan:
    """The cells on these topologies, for every release, and those that have no meaning."""
    each = itertools.product(topologies, implementations)
    return Plan.of(one for topology, implementation in each for one in _candidates(implementation, topology))


def _candidates(implementation: str, topology: Topology) -> Iterator[tuple[Cell, str | None]]:
    for callback in callbacks_drawn_for(implementation):
        further = FURTHER if callback.name in WITH_FURTHER else ()
        local = ON_ONE_DEVICE if callback.name in LOCAL else ()
        for name in (*EVERYWHERE, *local, *further):
            program = Program(tuple(name.split(".")))
            reason = ineligible(callback, program, topology.device_count)
            yield (
                ProgramCell(implementation, callback, program, topology),
                reason or _left_out(callback, implementation),
            )
    names = {callback.name for callback in callbacks_asked_of(implementation)}
    for case in all_cases():
        if case.processes and case.callback in names:
            reason = case.ineligible(topology.device_count, topology.processes)
            yield CaseCell(implementation, case, topology), reason


def _left_out(callback: Callback, implementation: str) -> str | None:
    if is_only_batched(callback):
        return f"not sampled: without vmap this is {callback.function}"
    if implementation == "jax" and callback.device_choice is DeviceChoice.LAST:
        return limit_of_devices(callback, ("pjit",), 2)
    return None
