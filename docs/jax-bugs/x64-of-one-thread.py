import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import numpy as np

if not hasattr(jax, "enable_x64"):
    raise SystemExit(125)  # this release has no jax.enable_x64


def function(x):
    return jax.pure_callback(lambda x: np.float64(0.1), jax.ShapeDtypeStruct((), np.float64), x)


with jax.enable_x64(True):
    try:
        came = str(jax.pmap(function)(np.zeros(2))[0])
    except jax.errors.JaxRuntimeError as error:
        came = str(error).strip().splitlines()[-1]
print("came:", came)
print("expected: 0.1")
raise SystemExit(came != "0.1")
