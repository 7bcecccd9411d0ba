"""Profiles: parts of the plan, by which a platform says what of host callbacks it supports. This needs no JAX.

The id of a cell says to which profiles it belongs, so that what a result claims about its cells does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .callbacks import Callback, DeviceChoice
from .external_callbacks import ALL_CALLBACKS

CORE, ORDERED, SHARDED, ZERO_COPY, MULTI_PROCESS = "core", "ordered", "sharded", "zero-copy", "multi-process"

PROFILES = {
    CORE: "programs on one device, with the callbacks that are neither ordered nor get buffers",
    ORDERED: "the callbacks that run in order: taps, calls, and the ordered callbacks of JAX",
    SHARDED: "pmap, pjit and shard_map over several devices of one process",
    ZERO_COPY: "buffer and DLPack callbacks",
    MULTI_PROCESS: "everything over several processes",
}
"""What each profile holds. A cell of one process may belong to `ordered`, `sharded` and `zero-copy` at once."""

DEPTHS = ("lower", "compile", "run")
"""How far a cell's program goes, the least first; an id that names none means the last."""

FAULT, TABLE = "fault", "table"

_CALLBACKS = {callback.name: callback for callback in ALL_CALLBACKS}
_MAPS = {"pmap", "pjit", "shard_map"}
_BUFFERS = {"buffer_callback", "dlpack_callback"}
_TOPOLOGY = re.compile(r".+-(?:(?P<devices>\d+)dev|(?P<processes>\d+)x(?P<each>\d+))")


@dataclass(frozen=True)
class Place:
    """The part of a cell's id that says where its program goes."""

    processes: int
    devices: int
    """The number that the program uses, in all processes."""
    depth: str


def place_of(cell_id: str) -> Place:
    """Where the program of a cell goes; raises `ValueError` for what is no id of a cell."""
    parts = cell_id.split("/")
    where, _, depth = parts[-1].partition("@")
    name, *options = where.split("+")
    found = _TOPOLOGY.fullmatch(name)
    if len(parts) != 4 or found is None or (depth or DEPTHS[-1]) not in DEPTHS:
        raise ValueError(f"{cell_id!r} is no id of a cell: expected implementation/callback/program/topology")
    processes = int(found["processes"] or 1)
    devices = int(found["devices"] or int(found["each"]) * processes)
    if "last" in options:
        devices = 1
    elif any(option.startswith("part") for option in options):
        devices //= 2
    return Place(processes, devices, depth or DEPTHS[-1])


def implementation_of(cell_id: str) -> str:
    return cell_id.partition("/")[0]


def is_fault(cell_id: str) -> bool:
    return cell_id.split("/")[2].startswith(f"{FAULT}.")


def profiles_of(cell_id: str) -> tuple[str, ...]:
    """The profiles to which a cell belongs; none for a callback that the suite does not know."""
    place = place_of(cell_id)
    _, name, program, _ = cell_id.split("/")
    callback = _CALLBACKS.get(name)
    if callback is None:
        return ()
    if place.processes > 1:
        return (MULTI_PROCESS,)
    traits = [
        (ORDERED, callback.ordered or any(part.ordered for part in callback.parts)),
        (SHARDED, place.devices > 1 and _spans_devices(callback, program)),
        (ZERO_COPY, callback.function in _BUFFERS),
    ]
    return tuple(profile for profile, has in traits if has) or (CORE,)


def _spans_devices(callback: Callback, program: str) -> bool:
    # `fault.raises.pmap` and `pmap.scan+int8-vector-one` alike.
    names = program.partition("+")[0].split(".")
    return bool(_MAPS & {*names}) or callback.partitioned or callback.device_choice is DeviceChoice.LAST
