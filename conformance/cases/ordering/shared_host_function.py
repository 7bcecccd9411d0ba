"""One host function in several callbacks of a program: no callback takes the operand or the result of another one.

JAX's caches take host functions that are equal to each other for one.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import Host
from ..harness.registry import ONE_OF_EACH

ROW = np.array([1, 2, 3], np.float32)

# Of one size in bytes, so that one could stand for another.
OPERANDS = [ROW, ROW.astype(np.int32), ROW.astype(np.uint32), ROW[None], ROW[:, None]]
RESULTS = [ROW.astype(dtype) for dtype in ("float32", "int32", "uint8", "float32")]


@case("jit pmap", f"{ONE_OF_EACH} io_callback_ordered debug_callback_ordered", "H18")
def same_function_of_other_types(case: Case) -> None:
    """A function that is called with several types and shapes gets each of these operands, and its result."""
    host = case.host()
    for results in case.runs(lambda xs: [case.apply(host, x) for x in xs], OPERANDS):
        case.gave(results, OPERANDS)
        case.saw(host, OPERANDS)


@case("jit", "call io_callback_ordered", "H18")
def same_function_of_other_results(case: Case) -> None:
    """A function of one operand gives each place of the program the type of result that this place declares."""
    host = case.host(returns=RESULTS)
    for results in case.runs(lambda x: [case.apply(host, x, like) for like in RESULTS], ROW):
        case.gave(results, RESULTS)
        case.saw(host, [ROW] * len(RESULTS))


def _trees(x: Any) -> list[Any]:
    return [(x, x), [x, x], {"a": x, "b": x}, {"a": x, "c": x}, {"a": (x, x)}, (x, x)]


@case("jit", ONE_OF_EACH, "H18")
def same_function_of_other_operands(case: Case) -> None:
    """The same two arrays in one tree after the other: the function gets each of them."""
    seen: list[Any] = []

    def keep(operand: Any) -> Any:
        seen.append(jax.tree.structure(operand))
        return ROW

    host = case.host(keep)
    jax.block_until_ready(case.compile(lambda x: [case.apply(host, tree, ROW) for tree in _trees(x)])(ROW))
    case.barrier()
    expected = [jax.tree.structure(tree) for tree in _trees(0)]
    # Without an effect, the compiler orders them, and may keep one of equal calls.
    right = seen == expected if case.callback.ordered else {*seen} == {*expected}
    case.check(right, "mistaken", Stage.CALLBACK, f"it saw {seen}, expected {expected}")


@case("jit", "buffer_callback", "B1 H18")
def same_types_with_and_without_alias(case: Case) -> None:
    """Two functions of the same types in one program, of which one changes its operand in place: in each order."""

    def twice(context: Any, out: Any, x: Any) -> None:
        np.multiply(np.asarray(x), 2, out=np.asarray(out))

    def one_more(context: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] += 1

    like = jax.ShapeDtypeStruct(ROW.shape, ROW.dtype)
    doubled = case.library.buffer_callback(twice, like)
    in_place = case.library.buffer_callback(one_more, like, input_output_aliases={0: 0})
    for function, expected in (
        (lambda x: in_place(doubled(x)), ROW * 2 + 1),
        (lambda x: doubled(in_place(x + 0)), (ROW + 1) * 2),
    ):
        for results in case.runs(function, ROW):
            case.gave(results, expected)


@case("pjit", "debug_callback", "H18 X4", minimum_devices=2)
def same_function_in_parts(case: Case) -> None:
    """In one program over all devices, with and without `partitioned`: the whole once, and each part once."""
    whole, parts = case.operand, [row[None] for row in case.operand]
    for order in ((False, True), (True, False)):
        host = case.host()

        def program(x: Any, host: Any = host, order: tuple[bool, ...] = order) -> Any:
            for partitioned in order:
                case.library.debug.callback(host, x, partitioned=partitioned)
            return x

        for results in case.runs(program, case.operand, times=1):
            case.gave(results, case.operand)
            case.saw(host, [whole, *parts])


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
