import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import jax.numpy as jnp
import numpy as np

came = []


def loss(x, verbose):
    def step(carry, number):
        jax.lax.cond(verbose, lambda: jax.debug.callback(lambda n: came.append(int(n)), number), lambda: None)
        return jnp.sin(carry), None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


jax.block_until_ready(jax.jit(jax.grad(loss))(np.float32(1), np.bool_(True)))
jax.effects_barrier()
print("came:", sorted(came))
print("expected: [0, 1, 2]")
raise SystemExit(sorted(came) != [0, 1, 2])
