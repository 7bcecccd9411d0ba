import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import jax.numpy as jnp
import numpy as np

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    raise SystemExit(125) from None  # this release has no buffer_callback

operand = np.array([1, -2, 3, -4, 5], jnp.int4)
came = []


def host(context, out, x):
    came.append(np.asarray(x).tolist())


jax.block_until_ready(jax.jit(buffer_callback(host, jax.ShapeDtypeStruct((), np.float32)))(operand))
expected = [operand.tolist()]
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
