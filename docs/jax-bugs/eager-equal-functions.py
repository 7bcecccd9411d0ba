import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import io_callback

came = []


@dataclass(frozen=True)
class Host:
    value: object

    def __call__(self, x):
        came.append(self.value)
        return np.asarray(x)


x = np.float32(0)
for callback in (jax.pure_callback, io_callback):
    for value in (1, True):
        jax.block_until_ready(callback(Host(value), jax.ShapeDtypeStruct((), np.float32), x))
expected = [1, True, 1, True]
print("came:", came)
print("expected:", expected)
raise SystemExit(str(came) != str(expected))
