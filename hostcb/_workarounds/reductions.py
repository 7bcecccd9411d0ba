"""Unordered callbacks that get a reduction of what the program returns.

XLA's compiler for CPU lets a library compute large reductions. It moves what a reduction reads into the library's
computation, and then removes it from the program if nothing else uses it. It forgets that the result of a computation
is used. So `y = x @ w; debug.print("{}", y.mean()); return y` does not compile: "dot_general.1 is live and cannot be
removed". The result of a computation with several results is a tuple, which is not moved. An ordered callback gives the
computation a token as a second result. So only programs with unordered callbacks, and with a computation that has one
array as its result, are compiled without the library's reductions.

- docs/jax-bugs/reduction-of-the-result.md: JAX >=0.10.2
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jax.interpreters import mlir

from .. import _compat
from .._runtime.dispatch.programs import Program

# The operations that a library computes. Without this option, these are single products of matrices, and reductions.
_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_PRODUCTS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"


def work_around() -> None:
    _compat.compile_with(_without_library_reductions)


def _without_library_reductions(module: Any, kept: Sequence[Any]) -> dict[str, str]:
    """Return the compiler options of a program; none if XLA's bug cannot concern it, or if the user has set the option.

    `kept` has the `Program` if the program has callbacks of hostcb.
    """
    ours = any(isinstance(each, Program) and each.effectful for each in kept or ())
    if not ours or _LIBRARY in os.environ.get("XLA_FLAGS", "") or not _returns_one_array(module):
        return {}
    return {_LIBRARY: _PRODUCTS}


def _returns_one_array(module: Any) -> bool:
    """Return whether the program or the body of a loop has one result, an array; XLA makes tuples of branches'."""
    found = False

    def look(operation: Any) -> Any:
        nonlocal found
        results = [result.type for result in operation.results]
        if operation.name == "func.func" and operation.attributes["sym_name"].value == "main":
            results = operation.attributes["function_type"].value.results
        elif operation.name != "stablehlo.while":
            return mlir.ir.WalkResult.ADVANCE
        found = len(results) == 1 and isinstance(results[0], mlir.ir.ShapedType) and results[0].rank > 0
        return mlir.ir.WalkResult.INTERRUPT if found else mlir.ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return found
