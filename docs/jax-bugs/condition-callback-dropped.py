import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax

came = []


def condition(step):
    jax.debug.callback(lambda step: came.append(int(step)), step)
    return step < 3


def body(step):
    jax.debug.callback(lambda step: None, step, ordered=True)
    return step + 1


jax.block_until_ready(jax.jit(lambda: jax.lax.while_loop(condition, body, 0))())
jax.effects_barrier()
print("came:", sorted(came))
print("expected:", [0, 1, 2, 3])
raise SystemExit(sorted(came) != [0, 1, 2, 3])
