import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax

came = []


@jax.custom_vjp
def double(x):
    return x * 2


def forward(x):
    jax.debug.callback(lambda x: came.append(float(x)), x)
    return x * 2, None


try:
    double.defvjp(forward, lambda _, cotangent: (cotangent * 2,), optimize_remat=True)
except TypeError:
    raise SystemExit(125) from None  # this release has no optimize_remat
try:
    jax.block_until_ready(jax.jit(jax.grad(double))(3.0))
except NotImplementedError:
    print("came: refused")
    raise SystemExit(0) from None
jax.effects_barrier()
print("came:", came)
print("expected:", [3.0])
raise SystemExit(came != [3.0])
