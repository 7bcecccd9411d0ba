import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

if not hasattr(jax, "shard_map"):
    raise SystemExit(125)  # this release has no jax.shard_map

seen = []


def function(x):
    jax.debug.callback(lambda: seen.append(None))
    return x


mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
mapped = jax.shard_map(function, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
try:
    jax.jit(mapped)(np.arange(2.0)).block_until_ready()
    jax.effects_barrier()
    came = f"{len(seen)} calls"
except Exception as error:
    came = f"{type(error).__name__}: {str(error).partition('.')[0].partition(':')[2].strip() or error}"
print("came:", came[:90])
print("expected: 2 calls, one for each part along the axis a")
raise SystemExit(came != "2 calls")
