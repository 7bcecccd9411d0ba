import os

os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=1")
import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

if not hasattr(getattr(jax, "ffi", None), "build_ffi_lowering_function"):
    raise SystemExit(125)  # this release has no such function
handler = lambda x: (np.int32([1, 2, 3]),)
unchecked = Primitive("unchecked")
unchecked.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))


def lower(context, x):
    context.module_context.add_host_callback(handler)
    index = np.uint64(len(context.module_context.host_callbacks) - 1)
    build = jax.ffi.build_ffi_lowering_function("xla_ffi_python_cpu_callback", has_side_effect=True)
    return build(context, x, index=index).results


mlir.register_lowering(unchecked, lower)
try:
    came = str(np.asarray(jax.jit(unchecked.bind)(np.float32([0, 0, 0]))))
except Exception as error:
    came = "an error"
    print(error)
print("came:", came)
print("expected: an error: int32[3] was returned for float32[3]")
raise SystemExit(came != "an error")
