"""What hostcb finds: versions, devices, transports, and which private parts of JAX it knows (H21)."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform

import jax
import numpy as np

from .. import _compat
from .._compat import extend
from .._compat.registry import Entry, entries, losses
from .._lowering.rule import GPU_PLATFORMS
from .._native.library import library
from .._version import __version__

_VIEWS = "one device, pmap and shard_map: callbacks read the device's memory"
_ONE_OF_MANY = "jit over a mesh: one of its devices calls"
_PARTS = "partitioned=True: each device of a mesh calls"
_IN_PLACE = "buffer_callback and dlpack_callback: without a copy"
_ARRAYS = "one device, pmap and shard_map: callbacks read copies"
_SEND = "all but buffer_callback, dlpack_callback and partitioned=True: by JAX's own send and receive"


@dataclasses.dataclass(frozen=True)
class Report:
    """What `hostcb.doctor` found; `str` of it is all of it, as `python -m hostcb --all` prints it."""

    text: str
    # What `python -m hostcb` prints: without the transports, and without the parts of JAX that hold.
    brief: str
    # The places of what this JAX lacks, or has in another way; empty if every promise holds.
    lost: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether this JAX has all that hostcb needs."""
        return not self.lost

    def __str__(self) -> str:
        return self.text


def doctor() -> Report:
    """Say what hostcb finds: versions, devices, transports, and each private part of JAX that it uses.

    It starts JAX's devices. Where this JAX lacks something, the report says which promises of the contract are lost and
    what is refused. `python -m hostcb` prints the most of it, and exits with 1 if something is lost.

    Follows H21 of the contract. Example:

        >>> import hostcb as hcb
        >>> report = hcb.doctor()
        >>> report.complete, report.lost
        (True, ())
        >>> print(str(report).splitlines()[0])  # doctest: +ELLIPSIS
        hostcb 0.1.0 with JAX ...
    """
    for entry in entries:
        if not entry.probed:
            # Of modules that nobody has imported yet.
            entry.probe()
    lost, platforms = losses(), _platforms()
    extension = f"the native extension: {library.state()}"
    text = [
        *(_versions(), "", "devices, and how they call", *_devices(platforms, with_transports=True)),
        *("", extension, "", _installed(), "", _summary(lost), *map(_line, entries)),
    ]
    brief = [
        *(_versions(), "devices", *_devices(platforms, with_transports=False)),
        *(extension, _installed(), _summary(lost), *map(_line, lost)),
    ]
    return Report("\n".join(text), "\n".join(brief), tuple(entry.name for entry in lost))


def _versions() -> str:
    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "of unknown version"

    return (
        f"hostcb {__version__} with JAX {jax.__version__}, jaxlib {version('jaxlib')}, NumPy {np.__version__}, Python "
        f"{platform.python_version()}, on {platform.platform()}"
    )


def _platforms() -> dict[str, str]:
    """Return a text of the version and the devices of each platform."""
    found = {}
    try:
        for name, client in extend.backends().items():
            devices = ", ".join(map(str, jax.local_devices(backend=name)))
            version = " ".join(str(client.platform_version).split())
            found[name] = f"{name}, {version}: {devices or 'no devices'}"
    except Exception as error:
        # JAX does not start its platforms, whyever; the rest of the report is needed all the more.
        found["none"] = f"none: JAX says: {error}"
    return found


def _devices(platforms: dict[str, str], with_transports: bool) -> list[str]:
    """The devices of each platform, and the transports that callbacks take there."""
    lines = []
    for name, devices in platforms.items():
        lines.append(f"  {devices}")
        if with_transports and name != "none":
            lines += [f"    {transport}" for transport in _transports(name)]
    return lines


def _transports(name: str) -> list[str]:
    """As `hostcb._lowering.rule` chooses them."""
    if name == "cpu":
        return [_VIEWS, _ONE_OF_MANY, _PARTS, _IN_PLACE]
    if name in (*GPU_PLATFORMS, "gpu"):
        return [_ARRAYS, _ONE_OF_MANY, _PARTS, _IN_PLACE]
    return [_SEND]


def _installed() -> str:
    if _compat.exchange.made:
        return "JAX's callbacks: they go through hostcb, which is installed"
    return "JAX's callbacks: they are JAX's own; hostcb.install() or HOSTCB_INSTALL=1 lets them go through hostcb"


def _summary(lost: list[Entry]) -> str:
    if not lost:
        return f"private parts of JAX: all {len(entries)} that hostcb uses are as it expects"
    promises = sorted({promise for entry in lost for promise in entry.promises})
    return (
        f"private parts of JAX: {len(lost)} of {len(entries)} that hostcb uses are missing or have changed, so "
        f"parts of {', '.join(promises)} of docs/contract.md are lost"
    )


def _line(entry: Entry) -> str:
    line = f"  {entry.name}: {entry.state}"
    if not entry.lost:
        return line
    since = f"needed since JAX {entry.since}" + (f", until JAX {entry.until}" if entry.until else "")
    link = f"\n      {entry.link}" if entry.link else ""
    return (
        f"{line}\n      {entry.use}\n      {entry.without}\n      Lost: {', '.join(entry.promises)}; "
        f"{entry.cost.value}; {since}{link}"
    )
