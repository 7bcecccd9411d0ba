import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np


@jax.jit
def layer(x, w):
    y = x @ w
    jax.debug.callback(lambda mean: None, y.mean())
    return y


x = np.ones((64, 64), np.float32)
try:
    came = f"compiled, {float(layer(x, x)[0, 0])}"
except Exception as error:
    came = f"refused: {str(error)[-75:]}"
print("came:", came)
print("expected: compiled, 64.0")
raise SystemExit(not came.startswith("compiled"))
