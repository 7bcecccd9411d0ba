import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:
    shard_map = jax.shard_map
except AttributeError:
    from jax.experimental.shard_map import shard_map

mesh, rows = Mesh(jax.devices(), "d"), PartitionSpec("d")


def call(x):
    return io_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


program = jax.jit(lambda x: shard_map(call, mesh=mesh, in_specs=rows, out_specs=rows)(call(x)))
try:
    came = str(np.asarray(program(jax.device_put(np.float32([1, 2]), NamedSharding(mesh, rows)))))
except Exception as error:
    came = f"{type(error).__name__}: {str(error).splitlines()[0][:250]}"
expected = "[3. 4.]"
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
