"""The devices of a vendor's compiler that needs no hardware, and the proof that it refuses what is wrong."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..spec.platform_targets import TARGETS, CompileOnly, PlatformTarget
from ..spec.topology import Topology, WrongPlatformError
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
    try:
        importlib.metadata.version(compiler.package)
    except importlib.metadata.PackageNotFoundError:
        extra = {"cuda": "cuda13-local"}.get(target.name, target.extra)
        words = f"the compiler for {target.name} is not installed: pip install 'jax[{extra}]'"
        raise WrongPlatformError(words) from None
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
    found = {"an unknown custom-call target": lambda: _compile(devices[:1], _unknown_target)}
    if target.transfers and len(devices) > 1:
        found["an operation with side effects and without a sharding"] = lambda: _compile(devices, _unplaced)
    return found


def _compile(devices: list[jax.Device], function: Any) -> None:
    mesh = Mesh(np.array(devices), ("x",))
    operand = jax.ShapeDtypeStruct((len(devices),), np.float32, sharding=NamedSharding(mesh, PartitionSpec("x")))
    jax.jit(function).trace(operand).lower().compile()


def _unknown_target(x: Any) -> Any:
    return jax.ffi.ffi_call(NO_SUCH_TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def _unplaced(x: Any) -> Any:
    call = jax.ffi.ffi_call(NO_SUCH_TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype), has_side_effect=True)
    return call(x)


def lowering_devices(topology: Topology) -> list[jax.Device]:
    """CPU devices, as many as the topology has, to lower for another platform."""
    if topology.platform not in TARGETS:
        known = ", ".join(TARGETS)
        raise WrongPlatformError(f"nothing says how programs of {topology.platform} must look; known are {known}")
    devices = jax.devices("cpu")
    if len(devices) < topology.device_count:
        raise WrongPlatformError(f"JAX has {len(devices)} CPU devices to lower for, expected {topology.device_count}")
    return devices[: topology.device_count]
