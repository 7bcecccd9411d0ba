import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8", NPROC="2")
import contextlib
import threading

import jax
import numpy as np

together = threading.Barrier(8, timeout=5)


def host(x):
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait()
    return np.asarray(x)


program = jax.pmap(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
print("expected: the program ends", flush=True)
program(np.ones((8, 3), jax.numpy.int4)).block_until_ready()
print("came: the program ended")
