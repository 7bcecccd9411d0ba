"""Host functions that are equal to each other: JAX's caches take them for one, and each program has the right one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import Host


class _Adding(Host):
    """A host function that is equal to another one if it adds the same."""

    def __init__(self, host: Host, number: int) -> None:
        super().__init__(f"adding {number}", host.recorder, lambda x: np.asarray(x) + np.float32(number), ())
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Adding) and self.number == other.number

    def __hash__(self) -> int:
        # The same for all, so that equality decides.
        return 7


@case("jit", "id_tap call pure_callback io_callback io_callback_ordered", "H18")
def equal_functions(case: Case) -> None:
    """H18: callbacks with equal functions are one in JAX's caches, and those with other functions are not."""
    host = case.host()
    traces: list[int] = []

    def traced(x: Any, function: Any) -> Any:
        traces.append(function.number)
        return case.apply(function, x)

    def parameters(number: int) -> list[Any]:
        closed = jax.make_jaxpr(lambda x: case.apply(_Adding(host, number), x))(case.operand)
        return [sorted(equation.params.items(), key=lambda item: item[0]) for equation in closed.jaxpr.eqns]

    program = jax.jit(traced, static_argnums=1)
    for number in (1, 2, 1):
        added = case.operand + np.float32(number)
        case.gave(
            program(case.operand, _Adding(host, number)), added if case.callback.returns_new_value else case.operand
        )
        case.barrier()
    names = [event.site for event in case.events]
    case.same("wrong callback", Stage.CALLBACK, names, ["adding 1", "adding 2", "adding 1"])
    case.same("wrong count", Stage.TRACE, traces, [1, 2], "functions that were traced")
    one, same, other = (parameters(number) for number in (1, 1, 2))
    case.check(one == same, "equality", Stage.TRACE, "equations with equal functions are not equal")
    case.check(one != other, "equality", Stage.TRACE, "equations with other functions are equal")
