"""Fault cells of results in `shard_map`: a result varies over an axis of the mesh if one of the operands does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import check_quiet_barrier, check_value, error_of
from .fault import WITH_RESULTS, planted


# A check of what varies is in releases with `jax.shard_map` alone.
@planted(
    "shard_map", f"{WITH_RESULTS} buffer_callback", "H9", minimum_devices=2, needs="shard_map", functions="barrier_wait"
)
def varies_with_each_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H9: whichever of the operands varies, the result does: it cannot leave as one that is the same everywhere."""
    everywhere, by_row = PartitionSpec(), bench.split.spec
    whole = jax.device_put(jnp.ones((1, 3), np.float32), NamedSharding(bench.mesh, everywhere))
    rows = jax.device_put(jnp.asarray(bench.operand), bench.split)
    like = jax.ShapeDtypeStruct((1, 3), np.float32)

    def through(*each: Any) -> Any:
        return bench.apply(callback, lambda given: sum(map(np.asarray, given)), each, like)

    anomalies: list[Anomaly] = []
    for which in range(3):
        operands = [whole, whole, whole]
        operands[which] = rows
        places = tuple(by_row if number == which else everywhere for number in range(3))

        mapped = jax.shard_map(through, mesh=bench.mesh, in_specs=places, out_specs=by_row)
        wanted = bench.operand + np.float32(2)
        anomalies += check_value(f"operand {which} in parts", lambda run=mapped, given=operands: run(*given), wanted)  # type: ignore[misc]
        mistaken = jax.shard_map(through, mesh=bench.mesh, in_specs=places, out_specs=everywhere)
        refused = error_of(lambda run=mistaken, given=operands: jax.jit(run).lower(*given))  # type: ignore[misc]
        if not isinstance(refused, ValueError):
            witness = f"with operand {which} in parts, a result that is the same everywhere came to {refused!r}"
            anomalies.append(Anomaly("not refused", Stage.TRACE, witness))
    return anomalies + check_quiet_barrier(bench, "after programs of several operands")
