"""The names of topologies, such as `cpu-8dev`, `cpu-2x4` or `tpu-4dev+x64@compile`, and their parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .depths import Depth


class UnknownTopologyError(ValueError):
    """The name of no topology."""


@dataclass(frozen=True)
class Parts:
    platform: str
    devices: int
    """The devices of all processes."""
    processes: int
    options: tuple[str, ...]
    depth: Depth


_NAME = re.compile(r"(?P<platform>.+)-(?:(?P<devices>\d+)dev|(?P<processes>[1-9]\d*)x(?P<local>[1-9]\d*))")
_DEPTHS = {depth.value: depth for depth in Depth if depth is not Depth.RUN}


def parts_of(name: str) -> Parts:
    where, at, depth = name.partition("@")
    plain, *options = where.split("+")
    match = _NAME.fullmatch(plain)
    if not match:
        raise UnknownTopologyError(f"{name!r} is no topology: expected one like cpu-8dev, cpu-2x4 or tpu-4dev@compile")
    if at and depth not in _DEPTHS:
        raise UnknownTopologyError(f"{depth!r} in {name!r} is no depth: expected {' or '.join(_DEPTHS)}")
    processes = int(match["processes"] or 1)
    devices = int(match["devices"] or processes * int(match["local"] or 1))
    return Parts(match["platform"], devices, processes, tuple(options), _DEPTHS.get(depth, Depth.RUN))
