"""The devices for cells, only those of the requested platform; and of a vendor's compiler that needs no hardware.

Such a compiler must refuse what is wrong, else what it compiles shows nothing.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..spec.depths import Depth
from ..spec.errors import did_you_mean
from ..spec.platform_targets import TARGETS, CompileOnly, PlatformTarget, why_not_lowered
from ..spec.platforms import UNKNOWN, known_names, platform_named
from ..spec.suite import installed
from ..spec.topology import Topology, WrongPlatformError, check_devices
from .private_jax import compile_callbacks_for_gpus, without_amd_gpus

CONFIGURATIONS = Path(__file__).with_name("target_configs")
NO_SUCH_TARGET = "conformance_no_such_target"


def compile_only_devices(topology: Topology) -> list[jax.Device]:
    """The devices that the platform's compiler compiles for; it has passed the negative controls."""
    target = TARGETS.get(topology.platform)
    if target is None or target.compiler is None:
        raise WrongPlatformError(f"no compiler for {topology.platform} is known that needs no hardware")
    devices = _devices(topology, target, target.compiler)
    if len(devices) != topology.device_count:
        raise WrongPlatformError(f"the compiler has {len(devices)} devices, expected {topology.device_count}")
    check_controls(devices, target)
    return devices


def _devices(topology: Topology, target: PlatformTarget, compiler: CompileOnly) -> list[jax.Device]:
    if target.name == "cpu":
        return jax.devices("cpu")[: topology.device_count]
    key = topology.processes, topology.device_count
    if key not in compiler.names:
        there = ", ".join(
            Topology(target.name, devices, processes=processes).name for processes, devices in compiler.names
        )
        raise WrongPlatformError(f"no topology {topology.name} of {compiler.package} is known, there are {there}")
    if installed(compiler.package) is None:
        extra = {"cuda": "cuda13-local"}.get(target.name, target.extra)
        words = f"the compiler for {target.name} is not installed: pip install 'jax[{extra}]'"
        raise WrongPlatformError(words)
    if target.name == "rocm":
        without_amd_gpus()
    try:
        return list(np.array(_described(target, compiler, key).devices).reshape(-1))
    except Exception as error:
        # A plugin without its libraries raises errors of many types.
        words = f"{compiler.package} does not load, or does not know {compiler.names[key]!r}: {type(error).__name__}"
        raise WrongPlatformError(f"{words}: {' '.join(str(error).split())[:600]}") from error


def _described(target: PlatformTarget, compiler: CompileOnly, key: tuple[int, int]) -> Any:
    if not compiler.target_config:
        options = compiler.options.get(key, {})
        return topologies.get_topology_desc(platform=target.name, topology_name=compiler.names[key], **options)
    compile_callbacks_for_gpus()
    config = (CONFIGURATIONS / compiler.target_config).read_text()
    return topologies.get_topology_desc(
        platform=target.name, topology_name="", target_config=config, topology=compiler.names[key]
    )


def check_controls(devices: list[jax.Device], target: PlatformTarget) -> None:
    """Compile what is wrong. A compiler that accepts it checks nothing, and what it compiles shows nothing."""
    for what, compile_it in controls(devices, target).items():
        try:
            compile_it()
        except Exception as error:
            if "conformance" in str(error) or "sharding" in str(error).lower():
                continue
            words = f"the compiler for {target.name} refused {what} for another reason: {type(error).__name__}: "
            raise WrongPlatformError(words + " ".join(str(error).split())[:400]) from error
        raise WrongPlatformError(
            f"the compiler for {target.name} accepted {what} on {len(devices)} devices: it checks nothing, so that"
            " nothing that it compiles shows anything"
        )


def controls(devices: list[jax.Device], target: PlatformTarget) -> dict[str, Any]:
    """Programs that a compiler must refuse, by what is wrong in them."""
    found = {"an unknown custom-call target": lambda: _compile(devices[:1], side_effect=False)}
    if target.transfers and len(devices) > 1:
        found["an operation with side effects and without a sharding"] = lambda: _compile(devices, side_effect=True)
    return found


def _compile(devices: list[jax.Device], side_effect: bool) -> None:
    """Compile a call of an unknown target over the devices."""
    mesh = Mesh(np.array(devices), ("x",))
    operand = jax.ShapeDtypeStruct((len(devices),), np.float32, sharding=NamedSharding(mesh, PartitionSpec("x")))
    result = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
    call = jax.ffi.ffi_call(NO_SUCH_TARGET, result, has_side_effect=side_effect)
    jax.jit(lambda x: call(x)).trace(operand).lower().compile()


def lowering_devices(topology: Topology) -> list[jax.Device]:
    """CPU devices, as many as the topology has, to lower for another platform."""
    if topology.platform not in TARGETS:
        raise WrongPlatformError(why_not_lowered(topology.platform))
    devices = jax.devices("cpu")
    if len(devices) < topology.device_count:
        raise WrongPlatformError(f"JAX has {len(devices)} CPU devices to lower for, expected {topology.device_count}")
    return devices[: topology.device_count]


@contextlib.contextmanager
def _logged_by_jax() -> Iterator[list[str]]:
    """What JAX logs meanwhile: the error of a plugin that does not start is there alone."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            found.append(record.getMessage() + (f": {type(error).__name__}: {error}" if error else ""))

    handler = Kept(logging.WARNING)
    logging.getLogger("jax").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("jax").removeHandler(handler)


def _why_none(topology: Topology, error: Exception, logged: list[str]) -> str:
    """What is missing: JAX raises many types of errors here, also a bare AssertionError."""
    # The suite sets the variable of which JAX speaks.
    said = re.sub(r" *\(set JAX_PLATFORMS=[^)]*\)", "", " ".join(str(error).split())).rstrip(".")
    target = TARGETS.get(topology.platform)
    if target is None or not target.plugins:
        said = said or f"it says no more than {type(error).__name__}; is its plugin installed?"
        if platform_named(topology.platform).source == UNKNOWN:
            said += f"; if a file describes {topology.platform}, give --platform FILE.toml"
            # Devices of several platforms say "gpu".
            same = [name for name in known_names() if topology.platform in platform_named(name).devices]
            said += f"; did you mean {' or '.join(same)}?" if same else did_you_mean(topology.platform, known_names())
        return " ".join("; JAX logged: ".join([said, *logged]).split())
    plugins = [f"{name} {version}" for name in target.plugins if (version := installed(name))]
    if not plugins:
        return f"its plugin is not installed, none of {', '.join(target.plugins)}: pip install 'jax[{target.extra}]'"
    there = f"{' and '.join(plugins)} {'is' if len(plugins) == 1 else 'are'} installed"
    return f"{there}, and no {topology.platform.upper()} device was found{f' ({said})' if said else ''}"


def devices_of(topology: Topology) -> list[jax.Device]:
    """The devices of a topology; all devices of the platform if its count is zero."""
    if topology.depth is not Depth.RUN:
        return compile_only_devices(topology) if topology.depth is Depth.COMPILE else lowering_devices(topology)
    platform = topology.platform
    try:
        # The name under which the platform is registered: its devices may have another `platform`.
        with _logged_by_jax() as logged:
            devices = jax.devices(topology.jax_name)
            default = jax.devices()
    except Exception as error:
        raise WrongPlatformError(
            f"asked for {platform} devices, JAX found none: {_why_none(topology, error, logged)}"
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
