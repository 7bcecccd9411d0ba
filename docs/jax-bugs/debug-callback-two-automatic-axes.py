import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8")
import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

if not hasattr(jax, "shard_map"):
    raise SystemExit(125)  # this release has no jax.shard_map

seen = []


def function(x):
    jax.debug.callback(lambda x: seen.append(np.asarray(x).tolist()), x)
    return x


def program(shape, names):
    mesh = Mesh(np.array(jax.devices()).reshape(shape), names)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}))


# One axis is left to the compiler: the callback runs once for each part.
jax.block_until_ready(program((2, 4), ("a", "b"))(np.float32([1, 2])))
jax.effects_barrier()
print("one axis:", sorted(seen))
seen.clear()
try:
    jax.block_until_ready(program((2, 2, 2), ("a", "b", "c"))(np.float32([1, 2])))
    jax.effects_barrier()
    came = sorted(seen)
except TypeError as error:
    came = f"TypeError: {error}"
print("came:", came)
print("expected:", [[1.0], [2.0]])
raise SystemExit(came != [[1.0], [2.0]])
