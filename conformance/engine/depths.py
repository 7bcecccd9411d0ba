"""Chooses how far a run takes its cells: to the depth that the user asks for, or the deepest that the machine has."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..spec.depths import Depth
from ..spec.platform_targets import TARGETS, why_not_lowered
from ..spec.topology import Topology, WrongPlatformError
from ..worker.process_group import start_group
from .options import AUTO


@dataclass(frozen=True)
class Chosen:
    depth: Depth
    asked: bool = True
    """Whether the user has named the depth."""
    why: str = ""
    """In words, where the machine has decided."""
    device_count: int | None = None
    """The number of devices, if the choice has counted them."""


def choose(platform: str, asked: str) -> Chosen:
    """The depth of a run on a platform; `asked` is one of `options.DEPTHS`.

    Raises `WrongPlatformError` if the platform is not there at the depth that is asked for.
    """
    if asked != AUTO:
        return _asked(platform, Depth(asked))
    if platform == "cpu":
        return Chosen(Depth.RUN)
    if platform not in TARGETS:
        return Chosen(Depth.RUN, device_count=count_devices(platform))
    try:
        count = count_devices(platform)
    except WrongPlatformError as error:
        absent = str(error)
    else:
        return Chosen(Depth.RUN, why=f"{count} device{'s' * (count > 1)} of {platform} found", device_count=count)
    try:
        compiler = _try_compiler(platform)
    except WrongPlatformError as error:
        why = f"{absent}; {error}; the programs are lowered, which needs neither"
        return Chosen(Depth.LOWER, asked=False, why=why)
    return Chosen(Depth.COMPILE, asked=False, why=f"{absent}; {compiler}")


def _asked(platform: str, depth: Depth) -> Chosen:
    if depth is Depth.RUN:
        return Chosen(depth, device_count=None if platform == "cpu" else count_devices(platform))
    if platform not in TARGETS:
        raise WrongPlatformError(why_not_lowered(platform))
    if depth is Depth.COMPILE:
        _try_compiler(platform)
    return Chosen(depth)


def count_devices(platform: str) -> int:
    """The number of devices of a platform, which only a process on it can count."""
    info = _probe(Topology(platform, 0))
    return info["device_count"]


def _try_compiler(platform: str) -> str:
    """Let the platform's compiler refuse what it must; the answer says which one it is, and for what it compiles."""
    info = _probe(Topology(platform, 1, depth=Depth.COMPILE))
    compiler = TARGETS[platform].compiler
    assert compiler is not None
    return f"{info['compiler']} compiles for {', '.join(filter(None, compiler.names.values())) or platform}"


def _probe(topology: Topology) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        worker = start_group(topology, None, Path(folder) / "probe.log")
        worker.finish()
        return worker.run_info
