"""Callbacks in the function of a reduction, which XLA applies in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, case

X, ZERO = np.arange(3, dtype=np.float32), np.float32(0)


@case("jit", "pure_callback", isolated=True)
def functions_of_reductions(case: Case) -> None:
    """A callback in the function of a reduction gives the right result, or is refused, and the process lives."""

    def add(one: Any, other: Any) -> Any:
        return case.apply(lambda pair: np.float32(pair[0] + pair[1]), (one, other), ZERO)

    def double(one: Any) -> Any:
        return case.apply(lambda operand: np.float32(2 * operand), one, ZERO)

    numbers = jax.lax.ScatterDimensionNumbers((), (0,), (0,))
    programs: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
        "reduce_window": (lambda x: jax.lax.reduce_window(x, ZERO, add, (2,), (1,), "VALID"), [1, 3]),
        "reduce": (lambda x: jax.lax.reduce(x, ZERO, add, (0,))[None], [3]),
        "scatter_apply": (
            lambda x: jax.lax.scatter_apply(x, jnp.array([[1]]), double, numbers, update_shape=(1,)),
            [0, 2, 2],
        ),
    }
    for name, (program, expected) in programs.items():
        try:
            actual = np.asarray(jax.jit(program)(X)).tolist()
        except NotImplementedError:
            continue
        except Exception as error:
            case.wrong("wrong refusal", Stage.TRACE, f"in {name} it came to {summary(error)}")
            continue
        case.same("result", Stage.RESULT, actual, expected, name)
