"""The platforms: those that the suite knows, and those that packages and files add. This module imports no JAX.

A platform has up to four names, which may differ: its own, in `--platform` and in ids of cells; the one under which its
plugin is registered with JAX; the `platform` of its devices, which JAX has in its messages; and words in the version
of its runtime.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import entry_points as points
from .entry_points import VendorError
from .platform_files import fields_of, read_table
from .platform_targets import CPU, CUDA

FILES = "HOSTCB_CONFORMANCE_PLATFORM_FILE"
"""The environment variable with the paths of files of platforms. `--platform FILE` sets it for the run's processes."""


UNKNOWN = "nothing: a plugin of JAX's may have the name"
"""The source of a platform that nobody has described."""


@dataclass(frozen=True)
class Platform:
    name: str
    """The name in `--platform` and in the ids of cells."""
    registered: str = ""
    """The name in `JAX_PLATFORMS` and for `jax.devices`; the platform's own name if empty."""
    devices: tuple[str, ...] = ()
    """What the `platform` of its devices may be; anything if empty."""
    version: tuple[str, ...] = ()
    """Words of which the version of its runtime has one; whatever version if empty."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its processes have, where the user has not set them."""
    xla_flags: tuple[str, ...] = ()
    """Flags in `XLA_FLAGS` of its processes, where the user has not set them."""
    modules: tuple[str, ...] = ()
    """Modules that add callbacks, transforms and cases, for runs on this platform."""
    workers: int = 1
    """How many processes a run starts, without `-n`."""
    most_workers: int | None = None
    """How many processes may have the devices at the same time; None if there is no limit."""
    targets: tuple[str, ...] = ()
    """The targets of custom calls by which callbacks reach the host; empty for channels of send and receive."""
    expectations: Path | None = None
    """The file of its known failures; None for the suite's own."""
    claims: tuple[str, ...] = ()
    """The capabilities that its vendor claims, as `reports.capabilities` names them."""
    device_counts: tuple[int, ...] = ()
    """The numbers of devices of a run without `--devices`; empty for one and as many as there are."""
    source: str = "the suite"
    """Where its description is from."""
    file: Path | None = None
    """Its file, if `--platform` or the environment variable names one."""

    @property
    def jax_name(self) -> str:
        return self.registered or self.name

    def as_json(self) -> dict[str, Any]:
        """What the description says. Where the files are is no part of it."""
        left_out = ("source", "file", "expectations")
        own = {name: value for name, value in vars(self).items() if value and name not in left_out}
        return own | {"environment": dict(self.environment)}

    @property
    def option(self) -> str:
        """What a command line needs, so that its command knows the platform of a cell: nothing without a file."""
        return f" --platform {shlex.quote(str(self.file))}" if self.file else ""


BUILT_IN = (
    # One more than two cores are busy with: some cells wait for the end of a time limit of XLA, or for their own.
    Platform("cpu", devices=("cpu",), workers=min(3, 1 + (os.cpu_count() or 1)), targets=CPU.targets),
    # Devices of all three say "gpu"; the versions of their runtimes differ.
    Platform("cuda", devices=("gpu",), version=("cuda",), targets=CUDA.targets),
    Platform("rocm", devices=("gpu",), version=("rocm",), targets=CUDA.targets),
    # libtpu lets one process have the chips.
    Platform("tpu", devices=("tpu",), most_workers=1),
    Platform("oneapi", devices=("gpu", "oneapi"), targets=CUDA.targets),
)


def platform_named(name: str) -> Platform:
    """The platform of this name. One that nobody has described is any plugin of JAX's that is registered so."""
    return _platform_named(name, os.environ.get(FILES, ""))


def known_platforms() -> tuple[Platform, ...]:
    """All platforms that the suite, packages and files describe."""
    return tuple(map(platform_named, known_names()))


def known_names() -> list[str]:
    names = [platform.name for platform in (*BUILT_IN, *_in_files(os.environ.get(FILES, "")))]
    names += [point.name for point in points.entry_points(points.PLATFORMS)]
    return [*dict.fromkeys(names)]


@functools.cache
def _platform_named(name: str, files: str) -> Platform:
    described = [platform for platform in BUILT_IN if platform.name == name]
    described += [platform for platform in _in_files(files) if platform.name == name]
    described += [_loaded(point) for point in points.entry_points(points.PLATFORMS) if point.name == name]
    if len(described) > 1:
        sources = " and ".join(platform.source for platform in described)
        raise VendorError(f"the platform {name!r} is described twice, by {sources}: give one of the two another name")
    return described[0] if described else Platform(name, source=UNKNOWN)


@functools.cache
def _in_files(files: str) -> tuple[Platform, ...]:
    paths = dict.fromkeys(Path(path).resolve() for path in files.split(os.pathsep) if path)
    return tuple(replace(platform_in(path), file=path) for path in paths)


def platform_in(path: Path) -> Platform:
    return _made(read_table(path), str(path), path.absolute().parent)


def use_file(path: Path) -> Platform:
    """The platform in a file, which this process and those that it starts know from now on."""
    platform = platform_in(path)
    others = [one for one in os.environ.get(FILES, "").split(os.pathsep) if one and Path(one) != path.resolve()]
    os.environ[FILES] = os.pathsep.join([*others, str(path.resolve())])
    # Raises for a name that is described elsewhere, too.
    platform_named(platform.name)
    return platform


def _loaded(point: Any) -> Platform:
    """The platform that an entry point names by a `Platform`, a table, the path of a file, or a function of these."""
    origin = points.origin(point)
    found = points.load(point)
    if callable(found) and not isinstance(found, Platform):
        found = points.attempted(found, origin)
    if isinstance(found, str | os.PathLike):
        path = Path(found)
        if not path.is_absolute():
            wanted = "expected an absolute one, such as Path(__file__).with_name"
            raise VendorError(f"{origin} is the path {str(path)!r}: {wanted}")
        found = platform_in(path)
    elif isinstance(found, Mapping):
        found = _made(found, origin, None)
    if not isinstance(found, Platform):
        raise VendorError(
            f"{origin} is {found!r}: expected a Platform, a table like that of a file, the path of a file, or a"
            f" function that returns one of them ({points.PAGE})"
        )
    if found.name != point.name:
        raise VendorError(f"{origin} describes the platform {found.name!r}: the two names must be the same")
    return replace(found, source=origin)


def _made(table: Mapping[str, Any], where: str, folder: Path | None) -> Platform:
    return Platform(**fields_of(table, where, folder), source=where)
