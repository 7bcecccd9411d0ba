import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

split = NamedSharding(Mesh(jax.devices(), "d"), PartitionSpec("d"))
like = jax.ShapeDtypeStruct((2,), np.float32)
second = SingleDeviceSharding(jax.devices()[1])
program = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, like, x, sharding=second))
result = program(jax.device_put(np.float32([1, 2]), split))
came = [np.asarray(result).tolist(), *(np.asarray(shard.data).tolist() for shard in result.addressable_shards)]
expected = [[2, 3], *([2, 3][shard.index[0]] for shard in result.addressable_shards)]
print("its sharding:", result.sharding, "- is it fully replicated?", result.is_fully_replicated)
print("came (whole, and by device):", came)
print("expected:", expected)
raise SystemExit(came != expected)
