import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

whole = NamedSharding(Mesh(jax.devices(), "d"), PartitionSpec())


def function(x):
    return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


came = np.asarray(jax.jit(function, in_shardings=whole, out_shardings=whole)(np.float32([-0.0]))).tolist()
expected = np.asarray(jax.jit(function)(np.float32([-0.0]))).tolist()
print("came:", came)
print("expected:", expected)
raise SystemExit(str(came) != str(expected))
