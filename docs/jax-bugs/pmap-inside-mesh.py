import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

split = NamedSharding(Mesh(jax.devices(), "d"), PartitionSpec("d"))


def calling(x):
    return jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def run(function):
    try:
        inside = jax.pmap(function)
        program = jax.jit(lambda x: inside(jax.lax.with_sharding_constraint(x, split)))
        return str(np.asarray(program(np.float32([1, 2]))))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:250]}"


came, expected = run(calling), run(lambda x: x + 1)
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
