import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
import threading

import jax
import numpy as np
from jax.experimental import io_callback

dispatched = threading.Event()


def host(x):
    dispatched.wait(30)
    raise ValueError("planted")


def raises(run):
    try:
        run()
    except Exception:
        return True
    return False


result = jax.pmap(lambda x: io_callback(host, jax.ShapeDtypeStruct((), np.float32), x))(np.zeros(2, np.float32))
dispatched.set()
expected = [True, True, False, False]
came = [raises(result.block_until_ready), *(raises(jax.effects_barrier) for _ in range(3))]
print(f"came: {came}\nexpected: {expected}")
raise SystemExit(came != expected)
