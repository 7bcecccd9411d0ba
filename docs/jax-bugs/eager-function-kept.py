import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np


def run():
    def host(x):
        return np.asarray(x) + 1

    jax.pure_callback(host, jax.ShapeDtypeStruct((), np.float32), jnp.float32(1)).block_until_ready()
    return weakref.ref(host)


functions = [run() for _ in range(100)]
gc.collect()
came = sum(function() is not None for function in functions)
jax.clear_caches()
gc.collect()
print("came:", came, "functions alive, and after jax.clear_caches():", sum(f() is not None for f in functions))
print("expected:", 0)
raise SystemExit(came != 0)
