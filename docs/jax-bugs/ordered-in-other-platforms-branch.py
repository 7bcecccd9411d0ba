import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np
from jax.experimental import io_callback

calls = []


def call(x):
    io_callback(lambda x: calls.append(float(x)), None, x, ordered=True)
    return x


@jax.jit
def program(x):
    return jax.lax.platform_dependent(x, tpu=call, default=lambda x: x * 2)


try:
    came = f"{float(program(np.float32(1)))}, calls {calls}"
except Exception as error:
    came = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
expected = "2.0, calls []"
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
