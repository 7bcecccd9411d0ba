import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if not hasattr(jnp, "int2"):
    raise SystemExit(125)  # this release has no int2
mesh = Mesh(jax.devices(), "d")
split, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
operand = jax.device_put(np.array([1, 0, -1, -2, 1, 0], jnp.int2), split)
came = np.asarray(jax.jit(lambda x: x, out_shardings=whole)(operand)).tolist()
expected = np.asarray(operand).tolist()
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
