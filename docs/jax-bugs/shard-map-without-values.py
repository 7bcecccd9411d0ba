import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import numpy as np
from jax.sharding import Mesh

if not hasattr(jax, "shard_map"):
    raise SystemExit(125)  # this release has no jax.shard_map

seen = []


def function():
    jax.debug.callback(lambda index: seen.append(int(index)), jax.lax.axis_index("a"))
    return ()


mesh = Mesh(np.array(jax.devices()), "a")
jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(), out_specs=()))()
jax.effects_barrier()
print("came: the indices", sorted(seen))
print("expected: the indices [0, 1]")
raise SystemExit(sorted(seen) != [0, 1])
