import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np


def condition(state):
    step, limit = state
    jax.debug.callback(lambda step: None, step, ordered=True)
    return step < limit


def loop(limit):
    return jax.lax.while_loop(condition, lambda state: (state[0] + 1, state[1]), (0.0, limit))[0]


came = jax.vmap(loop)(np.float32([1, 3])).tolist()
expected = [loop(np.float32(1)).item(), loop(np.float32(3)).item()]
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
