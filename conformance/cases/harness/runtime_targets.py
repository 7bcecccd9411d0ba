"""The runtime's own targets for Python callbacks on CPU, without checks in front of them.

These targets do not check the size of a result, so a library must check it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

EXPECTED = 3
MARK = 12345

TARGETS = {"ffi_target": "xla_ffi_python_cpu_callback", "buffer_target": "xla_buffer_python_cpu_callback"}
"""The first target copies the handler's results; the second lends the memory of the results to the handler."""

RESULTS: dict[str, Any] = {
    "right_result": np.arange(EXPECTED, dtype=np.float32),
    "short_result": np.arange(EXPECTED - 1, dtype=np.float32),
    "long_result": np.arange(EXPECTED + 1, dtype=np.float32),
    "longest_result": np.arange(MARK, dtype=np.float32),
    "error_mark": np.zeros(MARK, np.int8),
    "legitimate_mark": np.zeros(MARK, np.int8),
    "wrong_dtype": np.arange(EXPECTED, dtype=np.int32),
    "more_dimensions": np.zeros((EXPECTED, 1), np.float32),
    "no_result": None,
}
"""The wrong results for an expected float32[3]; the legitimate mark is the expected result itself."""


def raw_program(target: str, kind: str) -> tuple[Callable[[Any], Any], Any]:
    """A program whose handler returns a result of this kind, and the program's operand."""
    answer = RESULTS[kind]
    expected = RESULTS["legitimate_mark" if kind == "legitimate_mark" else "right_result"]

    def returning(operand: Any) -> Any:
        return () if answer is None else (answer,)

    def writing(context: Any, operand: Any, out: Any) -> None:
        if answer is not None:
            np.copyto(np.asarray(out), answer)

    primitive = Primitive(f"conformance_{target}")
    primitive.def_impl(lambda *operands: jax.jit(primitive.bind)(*operands))
    primitive.def_abstract_eval(lambda operand: jax.core.ShapedArray(expected.shape, expected.dtype))
    handler: Callable[..., Any] = returning if target == "ffi_target" else writing

    def lower(context: Any, operand: Any) -> Sequence[Any]:
        module_context = context.module_context
        module_context.add_host_callback(handler)
        index = np.uint64(len(module_context.host_callbacks) - 1)
        build = jax.ffi.build_ffi_lowering_function(TARGETS[target], has_side_effect=True)
        return list(build(context, operand, index=index).results)

    mlir.register_lowering(primitive, lower, cacheable=False)
    return jax.jit(primitive.bind), np.arange(EXPECTED, dtype=np.float32)
