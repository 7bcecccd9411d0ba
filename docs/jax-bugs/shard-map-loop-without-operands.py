import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, PartitionSpec

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

rows = PartitionSpec("d")
like = jax.ShapeDtypeStruct((), np.float32)
calls = []


def host(index):
    calls.append(int(index))
    return np.float32(1)


def part(x):
    # No operand: x gives a shape alone.
    loop = jax.lax.fori_loop(0, 4, lambda index, total: total + io_callback(host, like, index, ordered=True), 0.0)
    return jnp.zeros_like(x) + loop


jax.jit(shard_map(part, mesh=Mesh(jax.devices(), "d"), in_specs=rows, out_specs=rows))(np.zeros(2, np.float32))
jax.effects_barrier()
came, expected = [calls.count(index) for index in range(4)], [2] * 4
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
