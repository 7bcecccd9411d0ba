import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

if not hasattr(jax, "set_mesh"):
    raise SystemExit(125)  # this release has no jax.set_mesh
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
jax.set_mesh(mesh)


@jax.jit
def program(x):
    return jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


result = program(jax.device_put(np.float32([1, 2]), NamedSharding(mesh, PartitionSpec())))
print("came:", result.sharding)
print("expected:", NamedSharding(mesh, PartitionSpec(None)))
raise SystemExit(not isinstance(result.sharding, NamedSharding))
