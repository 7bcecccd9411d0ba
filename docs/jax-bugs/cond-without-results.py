import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np
from jax.experimental import io_callback

calls = []


def call(number):
    io_callback(lambda: calls.append(number), None, ordered=True)


@jax.jit
def program(x):
    jax.lax.cond(x > 0, lambda: call(1), lambda: call(2))
    jax.jit(lambda: call(3))()
    return x


try:
    program(np.float32(1)).block_until_ready()
    jax.effects_barrier()
    came = str(calls)
except Exception as error:
    came = f"{type(error).__name__}: {str(error).splitlines()[0][:250]}"
expected = str([1, 3])
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
