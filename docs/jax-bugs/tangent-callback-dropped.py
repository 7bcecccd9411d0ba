import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np
from jax.experimental import io_callback

came = []


@jax.custom_jvp
def square(x):
    return x * x


@square.defjvp
def rule(primals, tangents):
    (x,), (tangent,) = primals, tangents
    io_callback(lambda value: came.append(float(value)), None, tangent)
    return square(x), 2 * x * tangent


try:
    derivative = jax.jit(jax.grad(square))(np.float32(3))
    jax.effects_barrier()
    outcome = f"derivative {derivative}, callbacks: {came}"
except Exception as error:
    outcome = f"refused: {type(error).__name__}"
print("came:", outcome)
print("expected: a call, or an error as for an io_callback whose result is used")
raise SystemExit(not came and not outcome.startswith("refused"))
