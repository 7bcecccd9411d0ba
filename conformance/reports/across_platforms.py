"""Cells that are the same but for the platform or the depth: of `cuda-8dev` and of `tpu-8dev@lower`, `*-8dev`.

Platforms have more or fewer devices. If each has one number of several devices, programs on these are the same, too:
of `cpu-8dev` and of `tpu-4dev`, `*-*dev`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..spec.topology_names import Parts, UnknownTopologyError, parts_of
from .diff import ANY, Side
from .results import name_of

Value = TypeVar("Value")


def matched(columns: Sequence[Side]) -> tuple[list[Side], str]:
    """The columns, with cells that match if each column has one platform and depth, and a line that says so; or ""."""
    parts = [{_parts(cell) for cell in side.cells} - {None} for side in columns]
    places = [{(one.platform, one.depth.value) for one in of_side if one} for of_side in parts]
    if any(len(of_side) != 1 for of_side in places) or all(one == places[0] for one in places):
        return [*columns], ""
    counts = [{one.devices for one in of_side if one and _has_several(one)} for of_side in parts]
    several = len(set().union(*counts)) > 1 and all(len(of_side) <= 1 for of_side in counts)

    def renamed(named: Mapping[str, Value]) -> dict[str, Value]:
        return {_matched(cell_id, several): value for cell_id, value in named.items()}

    sides = [replace(side, cells=renamed(side.cells), left_out=renamed(side.left_out)) for side in columns]
    names = (
        f"{side.label} has {name_of(*place)}" + "".join(f" on {count} devices" for count in of_side if several)
        for side, (place,), of_side in zip(columns, places, counts, strict=True)
    )
    return sides, f"platforms: {', '.join(names)}; ids match without that part"


def _matched(cell_id: str, several: bool) -> str:
    """The id without platform and depth, and without the number of devices if there are `several`."""
    parts = _parts(cell_id)
    if parts is None:
        return cell_id
    start, _, topology = cell_id.rpartition("/")
    rest = topology.removeprefix(parts.platform).partition("@")[0]
    if several and _has_several(parts):
        rest = rest.replace(f"-{parts.devices}dev", f"-{ANY}dev", 1)
    return f"{start}/{ANY}{rest}"


def _has_several(parts: Parts) -> bool:
    """Whether one process has several devices."""
    return parts.devices > 1 and parts.processes == 1


def _parts(cell_id: str) -> Parts | None:
    """The parts of a cell's topology; None if its id has none."""
    try:
        return parts_of(cell_id.rpartition("/")[2])
    except UnknownTopologyError:
        return None
