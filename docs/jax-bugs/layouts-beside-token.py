import os

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
from jax.experimental import io_callback


def double(x):
    io_callback(lambda: None, None, ordered=True)
    return 2 * x


compiled = jax.jit(double).lower(jax.ShapeDtypeStruct((2, 3), "float32")).compile()
if not hasattr(type(compiled), "output_formats"):
    raise SystemExit(125)  # this release has no formats
try:
    came = str(compiled.output_formats.layout.major_to_minor)
except AssertionError:
    came = "AssertionError"
print("came:", came)
print("expected: (0, 1)")
raise SystemExit(came != "(0, 1)")
