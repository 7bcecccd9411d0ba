"""Fault cells of the device that runs a callback, and of the devices that hold its result."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import shard_map
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value, error_of
from .harness.registry import EVERY_KIND, WITH_RESULTS, planted
from .traces import library

FLOATS = ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32")
"""Floats of each width with a negative zero, but those of 64 bits, which a platform may lack."""

SHARDED = "pure_callback_sharding io_callback_sharding"


@planted("pjit", SHARDED, also="X5", minimum_devices=2)
@planted("pjit", "pure_callback io_callback", minimum_devices=2)
def result_reaches_all(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One device calls back, and every device has the whole result or its part: the compiler chooses."""
    # Not bench.compile: its explicit output sharding would hide the sharding of the callback's result.
    computation = jax.jit(lambda x: bench.apply(callback, lambda operand: operand + 1, x), in_shardings=bench.split)
    result = computation(bench.operand)
    wanted = bench.operand + 1
    anomalies = check_value("the computation", lambda: result, wanted)
    for shard in result.addressable_shards:
        anomalies += check_value(f"the part on {shard.device}", lambda s=shard: s.data, wanted[shard.index])  # type: ignore[misc]
    return anomalies


@planted("pjit", WITH_RESULTS, also="H10", minimum_devices=2)
def keeps_signs_of_zeros(bench: Bench, callback: Callback) -> list[Anomaly]:
    """XLA spreads a result over a mesh by adding zeros to it, and the sum of zeros has no sign."""
    anomalies = []
    # Two devices: JAX 0.10.2 hangs where all of the runtime's threads wait and a callback reads a float4_e2m1fn.
    split = NamedSharding(Mesh(bench.mesh.devices.flat[:2], "d"), PartitionSpec("d"))
    # Older releases have fewer types.
    for dtype in (getattr(jnp, name) for name in FLOATS if hasattr(jnp, name)):
        operand = np.full(2, -0.0, dtype)
        wanted = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
        program = jax.jit(
            lambda x, wanted=wanted: bench.apply(callback, lambda value: value, x, wanted),
            in_shardings=split,
            out_shardings=split,
        )
        result = np.asarray(program(operand))
        if not np.signbit(result.astype(np.float32)).all():
            witness = f"the zeros of {operand.dtype} are {result}, expected {operand}"
            anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies


@planted("pjit", f"{EVERY_KIND} debug_callback_ordered", "H10 X5", minimum_devices=2)
def feeds_shard_map(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A shard_map of the same program takes a callback's result, and a callback takes a shard_map's result."""
    doubled = shard_map(lambda x: x * 2, mesh=bench.mesh, in_specs=bench.split.spec, out_specs=bench.split.spec)

    def through(x: Any) -> Any:
        return bench.apply(callback, lambda operand: np.asarray(operand) + np.float32(1), x)

    programs = {
        "a shard_map of a result": (lambda x: doubled(through(x)), bench.expected(callback, bench.operand) * 2),
        "a callback of its result": (lambda x: through(doubled(x)), bench.expected(callback, bench.operand * 2)),
    }
    shardings = {"split": bench.split, "whole": NamedSharding(bench.mesh, PartitionSpec())}
    anomalies = []
    for label, (program, wanted) in programs.items():
        for how, sharding in shardings.items():
            compiled = jax.jit(program, in_shardings=sharding)
            anomalies += check_value(f"{label}, {how}", lambda c=compiled: c(bench.operand), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after callbacks beside a shard_map")


def _gives_to(lowered: str, device: int) -> bool:
    return bool(re.search(rf"device_ids ?= ?\[{device}\]|maximal device={device}\b", lowered))


@planted("pjit", SHARDED, also="X5", minimum_devices=2)
def names_its_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The compiled program places the callback on the named device, the last one."""
    # A callback cannot tell its device, so this check reads the compiled program.
    text = jax.jit(lambda x: bench.apply(callback, lambda operand: operand + 1, x), in_shardings=bench.split)
    lowered = text.lower(bench.operand).as_text()
    last = len(bench.devices) - 1
    if _gives_to(lowered, last):
        return []
    return [Anomaly("wrong device", Stage.LOWER, f"the lowered program gives nothing to device {last}")]


@planted("pjit", "io_callback pure_callback", "X5", minimum_devices=2, functions="barrier_wait")
def named_by_a_mesh_of_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X5: any sharding of a single device names it, also that of a mesh of one."""
    last = NamedSharding(Mesh(np.asarray(bench.devices[-1:]), ("alone",)), PartitionSpec())
    namespace = library(bench)
    function = namespace.io_callback if callback.function == "io_callback" else namespace.pure_callback

    def add_one(operand: Any) -> Any:
        return np.asarray(operand) + np.float32(1)

    program = jax.jit(lambda x: function(add_one, x, x, sharding=last), in_shardings=bench.split)
    lowered = program.lower(bench.operand).as_text()
    anomalies = check_value("a device of a mesh of one", lambda: program(bench.operand), bench.operand + 1)
    if not _gives_to(lowered, len(bench.devices) - 1):
        anomalies.append(Anomaly("wrong device", Stage.LOWER, "the lowered program gives nothing to the last device"))
    return anomalies + check_quiet_barrier(bench, "after a device of a mesh of one")


@planted("pjit", SHARDED, also="X5", minimum_devices=2)
def unknown_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A device on which the computation does not run is refused."""
    fewer = Bench(bench.implementation, "pjit", bench.devices[:-1])
    computation = fewer.compile(
        lambda x: bench.implementation.invoke(
            callback, lambda operand: operand + 1, x, jax.ShapeDtypeStruct(x.shape, x.dtype), bench.devices
        )
    )
    error = error_of(lambda: computation(fewer.operand))
    if isinstance(error, ValueError):
        return []
    came = "nothing was raised" if error is None else summary(error)
    return [Anomaly("not refused", Stage.LOWER, f"a device of no mesh must be refused with ValueError: {came}")]
