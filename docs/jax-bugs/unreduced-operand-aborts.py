import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

if not hasattr(jax, "set_mesh"):
    raise SystemExit(125)  # this release has no jax.set_mesh

mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
number = jax.ShapeDtypeStruct((), np.float32)


@jax.jit
def program(a, b):
    total = jnp.einsum("i,i->", a, b, out_sharding=P(unreduced={"x"}))
    return jax.pure_callback(lambda total: np.asarray(total), number, total)


with jax.set_mesh(mesh):
    values = jax.device_put(np.float32([1, 2]), P("x"))
    print("expected: 5.0, or an exception of Python", flush=True)
    print("came:", program(values, values))
