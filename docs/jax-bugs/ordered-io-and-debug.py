import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

like = jax.ShapeDtypeStruct((), np.float32)
came = []


def host(x):
    came.append("io")
    return np.float32(0)


@jax.jit
def program(x):
    slow = jax.lax.fori_loop(0, 50, lambda _, m: jnp.tanh(m @ m), jnp.full((300, 300), x))
    result = io_callback(host, like, slow[0, 0], ordered=True)
    for number in range(10):
        jax.debug.callback(lambda x: came.append("debug"), x + number, ordered=True)
    return result


program(np.float32(1)).block_until_ready()
jax.effects_barrier()
expected = ["io"] + ["debug"] * 10
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
