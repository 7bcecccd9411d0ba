import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax

came = []


def step(carry):
    number, x = carry
    jax.debug.callback(lambda x: came.append(float(x)), x)
    return number + 1, x * 2


def function(x):
    return x * jax.lax.stop_gradient(jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, x))[1])


try:
    jax.block_until_ready(jax.grad(function)(1.0))
except ValueError as error:
    came = f"{type(error).__name__}: {str(error)[:62]}"
jax.effects_barrier()
print("came:", came)
print("expected:", [1.0, 2.0, 4.0])
raise SystemExit(came != [1.0, 2.0, 4.0])
