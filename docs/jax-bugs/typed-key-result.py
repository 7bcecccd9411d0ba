import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax

key = jax.random.key(7)
like = jax.ShapeDtypeStruct(key.shape, key.dtype)


@jax.jit
def program(key):
    return jax.pure_callback(lambda key: key, like, key)


try:
    came = f"{program(key).dtype}"
except TypeError as error:
    came = f"TypeError: {error}"
expected = f"{key.dtype}"
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
