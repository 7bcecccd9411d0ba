"""Cells that are the same but for the platform or the depth: of `cuda-8dev` and of `tpu-8dev@lower`, `*-8dev`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..spec.topology_names import UnknownTopologyError, parts_of
from .diff import ANY, Side
from .results import name_of

Value = TypeVar("Value")


def matched(columns: Sequence[Side]) -> tuple[list[Side], str]:
    """The columns, with cells that match if each column has one platform and depth, and a line that says so; or ""."""
    places = [{_place_of(cell) for cell in side.cells} for side in columns]
    if any(len(of_side) != 1 or None in of_side for of_side in places) or all(one == places[0] for one in places):
        return [*columns], ""
    found = [place for (place,) in places if place]
    platforms, depths = ({*each} for each in zip(*found, strict=True))

    def matched_id(cell_id: str) -> str:
        place = _place_of(cell_id)
        if place is None:
            return cell_id
        start, _, topology = cell_id.rpartition("/")
        if len(platforms) > 1:
            topology = ANY + topology.removeprefix(place[0])
        return f"{start}/{topology.partition('@')[0] if len(depths) > 1 else topology}"

    def renamed(named: Mapping[str, Value]) -> dict[str, Value]:
        return {matched_id(name): value for name, value in named.items()}

    sides = [replace(side, cells=renamed(side.cells), left_out=renamed(side.left_out)) for side in columns]
    names = (f"{side.label} has {name_of(*place)}" for side, place in zip(columns, found, strict=True))
    return sides, f"platforms: {', '.join(names)}; ids match without that part"


def _place_of(cell_id: str) -> tuple[str, str] | None:
    """The platform and the depth of a cell; None if its id has no topology."""
    try:
        parts = parts_of(cell_id.rpartition("/")[2])
    except UnknownTopologyError:
        return None
    return parts.platform, parts.depth.value
