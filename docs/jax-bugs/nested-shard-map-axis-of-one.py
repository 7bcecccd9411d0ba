import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=4")
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

if not hasattr(jax, "shard_map"):
    raise SystemExit(125)  # this release has no shard_map that leaves axes to the compiler
mesh = Mesh(np.asarray(jax.devices()).reshape(4, 1), ("rows", "columns"))


def double(x):
    return io_callback(lambda x: np.asarray(2 * x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


def outer(x):
    return jax.shard_map(double, in_specs=P("columns"), out_specs=P("columns"), axis_names={"columns"})(x)


nested = jax.shard_map(outer, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"), axis_names={"rows"})
try:
    came = np.asarray(jax.jit(nested)(jnp.ones(4))).tolist()
except Exception as error:
    came = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
print("came:", came)
print("expected: [2.0, 2.0, 2.0, 2.0]")
raise SystemExit(came != [2.0, 2.0, 2.0, 2.0])
