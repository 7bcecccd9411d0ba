import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
from dataclasses import dataclass

import jax
import numpy as np

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    raise SystemExit(125) from None  # this release has no buffer_callback
came = []


@dataclass(frozen=True)
class Host:
    value: object

    def __call__(self, context, out):
        came.append(self.value)


@jax.jit
def program():
    return [buffer_callback(Host(value), jax.ShapeDtypeStruct((), np.float32))() for value in (1, True)]


jax.block_until_ready(program())
expected = [1, True]
print("came:", came)
print("expected (in any order):", expected)
raise SystemExit(sorted(map(str, came)) != sorted(map(str, expected)))
