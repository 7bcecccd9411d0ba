import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    raise SystemExit(125) from None  # this release has no buffer_callback

forgetful = buffer_callback(lambda context, out: None, jax.ShapeDtypeStruct((100000,), np.float32))
program = jax.jit(lambda x: (forgetful(), x + 1))
values = set()
for number in range(20):
    values |= set(np.asarray(program(np.full(100000, number, np.float32))[0]).tolist())
print("came:", len(values), "distinct values:", sorted(values)[:8])
print("expected: one value, or an error")
raise SystemExit(len(values) != 1)
