import os

os.environ.update(JAX_PLATFORMS="cpu")
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

calls = []


@jax.jit
def call():
    io_callback(calls.append, None, jnp.full(3, 7.0), ordered=True)


@jax.jit
def program(x):
    call()
    call()
    return x


print("expected: 2 calls", flush=True)
jax.block_until_ready(program(np.float32(1)))
jax.effects_barrier()
print("came:", len(calls), "calls")
raise SystemExit(len(calls) != 2)
