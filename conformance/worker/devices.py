"""The devices for cells: only devices of the requested platform."""

from __future__ import annotations

import importlib.metadata

import jax

from ..spec.depths import Depth
from ..spec.platform_targets import TARGETS
from ..spec.topology import Topology, WrongPlatformError, check_devices
from .compile_only import compile_only_devices, lowering_devices


def _why_none(topology: Topology, error: Exception) -> str:
    """What is missing: JAX raises many types of errors here, also a bare AssertionError."""
    said = " ".join(str(error).split())
    target = TARGETS.get(topology.platform)
    if target is None or not target.plugins:
        return said or f"it says no more than {type(error).__name__}; is its plugin installed?"
    installed = [f"{name} {version}" for name in target.plugins if (version := _version(name))]
    if not installed:
        return f"its plugin is not installed, none of {', '.join(target.plugins)}: pip install 'jax[{target.extra}]'"
    there = f"{' and '.join(installed)} {'is' if len(installed) == 1 else 'are'} installed"
    return f"{there}, and no {topology.platform.upper()} device was found{f' ({said})' if said else ''}"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices_of(topology: Topology) -> list[jax.Device]:
    """The devices of a topology; all devices of the platform if its count is zero."""
    if topology.depth is not Depth.RUN:
        return compile_only_devices(topology) if topology.depth is Depth.COMPILE else lowering_devices(topology)
    platform = topology.platform
    try:
        # The name under which the platform is registered: its devices may have another `platform`.
        devices = jax.devices(topology.jax_name)
        default = jax.devices()
    except Exception as error:
        raise WrongPlatformError(
            f"asked for {platform} devices, JAX found none: {_why_none(topology, error)}"
        ) from error
    if default[:1] != devices[:1]:
        # Programs that name no device would run on that other platform, and pass.
        raise WrongPlatformError(f"asked for {platform} devices, and by default JAX uses {default[0]}")
    version = getattr(devices[0].client, "platform_version", "") if devices else ""
    check_devices(topology, [device.platform for device in devices], version)
    if topology.processes > 1:
        return _of_all_processes(topology, devices)
    return devices[: topology.device_count] if topology.device_count else devices


def _of_all_processes(topology: Topology, devices: list[jax.Device]) -> list[jax.Device]:
    """The devices of all processes, those of the first process first; each process must have as many."""
    counts = [sum(device.process_index == process for device in devices) for process in range(jax.process_count())]
    if counts != [topology.local_device_count] * topology.processes:
        wanted = f"{topology.processes} processes with {topology.local_device_count} devices each"
        raise WrongPlatformError(f"asked for {wanted}, JAX found processes with {counts} {topology.platform} devices")
    return sorted(devices, key=lambda device: device.process_index)
