import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np
from jax.experimental import io_callback
from jax.sharding import SingleDeviceSharding

like = jax.ShapeDtypeStruct((), np.float32)
program = jax.jit(lambda x: io_callback(lambda x: np.asarray(x) + 1, like, x, ordered=True))
came = {}
for memory in jax.devices()[0].addressable_memories():
    operand = jax.device_put(np.float32(1), SingleDeviceSharding(jax.devices()[0], memory_kind=memory.kind))
    try:
        came[memory.kind] = str(program(operand))
    except Exception as error:
        came[memory.kind] = f"{type(error).__name__}: {str(error).splitlines()[0][:250]}"
if len(came) < 2:
    raise SystemExit(125)  # this release has one memory kind on CPU
expected = dict.fromkeys(came, "2.0")
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
