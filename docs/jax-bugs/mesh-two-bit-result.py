import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if not hasattr(jnp, "int2"):
    raise SystemExit(125)  # this release has no int2
whole = NamedSharding(Mesh(jax.devices(), "d"), PartitionSpec())
operand = np.array([1, 0, -1, -2], jnp.int2)


def function(x):
    return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


expected = str(np.asarray(jax.jit(function)(operand)))
try:
    came = str(np.asarray(jax.jit(function, in_shardings=whole, out_shardings=whole)(operand)))
except Exception as error:
    came = f"{type(error).__name__}: {str(error).splitlines()[0][:250]}"
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
