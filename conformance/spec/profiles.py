"""Profiles: parts of the plan, by which a platform says what of host callbacks it supports. This needs no JAX.

The id of a cell says to which profiles it belongs, so that what a result claims about its cells does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from .callbacks import Callback, DeviceChoice
from .depths import Depth
from .external_callbacks import ALL_CALLBACKS
from .topology import Topology, parse_topology

CORE, ORDERED, SHARDED, ZERO_COPY, MULTI_PROCESS = "core", "ordered", "sharded", "zero-copy", "multi-process"

PROFILES = {
    CORE: "programs on one device, with the callbacks that are neither ordered nor get buffers",
    ORDERED: "the callbacks that run in order: taps, calls, and the ordered callbacks of JAX",
    SHARDED: "pmap, pjit and shard_map over several devices of one process",
    ZERO_COPY: "buffer and DLPack callbacks",
    MULTI_PROCESS: "everything over several processes",
}
"""What each profile holds. A cell of one process may belong to `ordered`, `sharded` and `zero-copy` at once."""

_CALLBACKS = {callback.name: callback for callback in ALL_CALLBACKS}
_MAPS = {"pmap", "pjit", "shard_map"}
_BUFFERS = {"buffer_callback", "dlpack_callback"}


def topology_of(cell_id: str) -> tuple[Topology, Sequence[str]]:
    """The topology of a cell, and its placement and configuration; raises `ValueError` for what is no id of a cell."""
    parts = cell_id.split("/")
    if len(parts) != 4:
        raise ValueError(f"{cell_id!r} is no id of a cell: expected implementation/callback/program/topology")
    return parse_topology(parts[3])


def depth_of(cell_id: str) -> Depth:
    return topology_of(cell_id)[0].depth


def devices_of(cell_id: str) -> int:
    """The number of devices that the program of a cell uses; placements that use fewer say so in their names."""
    topology, options = topology_of(cell_id)
    if "last" in options:
        return 1
    part = any(option.startswith("part") for option in options)
    return topology.device_count // 2 if part else topology.device_count


def implementation_of(cell_id: str) -> str:
    return cell_id.partition("/")[0]


def is_fault(cell_id: str) -> bool:
    return cell_id.split("/")[2].startswith("fault.")


def profiles_of(cell_id: str) -> tuple[str, ...]:
    """The profiles to which a cell belongs; none for a callback that the suite does not know."""
    _, name, program, _ = cell_id.split("/")
    callback = _CALLBACKS.get(name)
    if callback is None:
        return ()
    if topology_of(cell_id)[0].processes > 1:
        return (MULTI_PROCESS,)
    traits = [
        (ORDERED, callback.ordered or any(part.ordered for part in callback.parts)),
        (SHARDED, devices_of(cell_id) > 1 and _spans_devices(callback, program)),
        (ZERO_COPY, callback.function in _BUFFERS),
    ]
    return tuple(profile for profile, has in traits if has) or (CORE,)


def _spans_devices(callback: Callback, program: str) -> bool:
    # `fault.raises.pmap` and `pmap.scan+int8-vector-one` alike.
    names = program.partition("+")[0].split(".")
    return bool(_MAPS & {*names}) or callback.partitioned or callback.device_choice is DeviceChoice.LAST
