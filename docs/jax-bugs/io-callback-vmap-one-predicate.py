import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np
from jax.experimental import io_callback

came = []


def function(x, index):
    def call(x):
        io_callback(lambda index: came.append(int(index)), None, index)
        return x

    return jax.lax.switch(index, [lambda x: x, call], x)


try:
    jax.jit(jax.vmap(function, in_axes=(0, None)))(np.float32([1, 3]), 1)
    jax.effects_barrier()
except NotImplementedError as error:
    came.append(str(error))
print("came:", came)
print("expected:", [1])
raise SystemExit(came != [1])
