import os

os.environ.update(JAX_PLATFORMS="cpu")
import jax
import numpy as np

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    raise SystemExit(125) from None  # this release has no buffer_callback


def add(context, out, total, x):
    np.asarray(out)[...] = np.asarray(total) + np.asarray(x)


def function(total, x):
    like = jax.ShapeDtypeStruct((2,), np.float32)
    return buffer_callback(add, like, input_output_aliases={0: 0}, vmap_method="expand_dims")(total, x)


total, batch = np.float32([10, 20]), np.float32([[1, 2], [3, 4], [5, 6]])
try:
    came = jax.jit(jax.vmap(function, in_axes=(None, 0)))(total, batch).tolist()
except ValueError as error:
    came = f"{type(error).__name__}: {str(error).splitlines()[0]}"
expected = (total + batch).tolist()
print("came:", came)
print("expected:", expected)
raise SystemExit(came != expected)
