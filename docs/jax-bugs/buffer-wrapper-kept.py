import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import functools

import jax
import numpy as np

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:
    raise SystemExit(125) from None  # this release has no buffer_callback
kept = {}


def keep(context, out, x):
    array = np.asarray(x)
    kept.setdefault(id(array.base), array)


def read(context, out, x):
    np.asarray(x)


def below(depth, program):  # at another address of the stack
    if depth:
        return functools.reduce(lambda *_: below(depth - 1, program), [None, None])
    return program(np.float32(1)).block_until_ready()


came = expected = "no error"
for function in (keep, read):
    program = jax.jit(buffer_callback(function, jax.ShapeDtypeStruct((), np.float32), has_side_effect=True))
    for depth in range(100):
        try:
            below(depth, program)
        except Exception as error:
            came = str(error).splitlines()[-1]
print(f"came: {came}\nexpected: {expected}")
raise SystemExit(came != expected)
