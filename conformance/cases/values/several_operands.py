"""Cases of functions of several operands, with one result and with a tree of results, beside static ones.

Buffer and DLPack callbacks have a way of their own for one result, and another one for trees.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ..harness.case import Case, case

OF_SEVERAL = "pure_callback io_callback debug_callback buffer_callback dlpack_callback dlpack_callback_in_place"
"""One of each that takes its operands one by one."""


def _results(operands: Any, tree: bool) -> Any:
    """Each operand counts in another way, so that no two may be exchanged."""
    first, second, third = (np.array(operand) for operand in operands)
    results = {"b": first - second * 3, "a": (third - first * 5,)}
    return results if tree else results["b"]


@case("jit", OF_SEVERAL, "X2 X3 X4 B1 D1")
def several_operands(case: Case) -> None:
    """Operands of one type come in the function's order, and so do results to their places in the tree."""
    operands = [case.operand + np.float32(number) for number in (1, 20, 300)]
    for tree in (False, True):
        label = "with a tree of results" if tree else "with one result"
        seen: list[Any] = []

        def host(*operands: Any, seen: list[Any] = seen, tree: bool = tree) -> Any:
            seen.append([np.asarray(each).tolist() for each in operands])
            return _results(operands, tree)

        wanted = _results(operands, tree)
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), wanted)

        def program(*operands: Any, host: Any = host, like: Any = like) -> Any:
            # One of the operands is made by the program.
            given = (operands[0], operands[1] + 0, operands[2])
            result = case.implementation.invoke(case.callback, host, given, like, case.devices, spread=True)
            return result if case.callback.returns_new_value else None

        found = jax.block_until_ready(jax.jit(program)(*operands))
        case.barrier()
        if case.callback.returns_new_value:
            for place, leaf, expected in zip(
                ("one", "other"), jax.tree.leaves(found), jax.tree.leaves(wanted), strict=False
            ):
                case.value(f"{label} the {place}", lambda leaf=leaf: leaf, expected)  # type: ignore[misc]
            structures: list[Any] = [jax.tree.structure(each) for each in (found, wanted)]
            if structures[0] != structures[1]:
                case.wrong("result", Stage.RESULT, f"{label} it is {found}, expected {wanted}")
        expected = [each.tolist() for each in operands]
        # A pure function may be called again.
        calls = seen[:1] if case.callback.runs is Runs.IF_NEEDED and all(each == seen[0] for each in seen) else seen
        if calls != [expected]:
            case.wrong("wrong operand", Stage.CALLBACK, f"{label} it saw {seen}, expected {expected}")


@case("jit", "debug_callback debug_callback_ordered", "X4")
def static_ones_between(case: Case) -> None:
    """Arguments that are no arrays come in their places among those that are, and by their names."""
    seen: list[Any] = []

    def host(*arguments: Any, **named: Any) -> None:
        received = [each if isinstance(each, str) else float(each) for each in (*arguments, *named.values())]
        seen.append((received, [*named]))

    def program(x: Any, y: Any) -> Any:
        for arguments, named in _mixed(x, y):
            case.library.debug.callback(host, *arguments, ordered=case.callback.ordered, **named)
        return x + y

    def wanted(x: float, y: float) -> list[Any]:
        return [([*arguments, *named.values()], [*named]) for arguments, named in _mixed(x, y)]

    compiled = jax.jit(program)
    for x, y in ((1.0, 2.0), (3.0, 4.0)):
        seen.clear()
        jax.block_until_ready(compiled(np.float32(x), np.float32(y)))
        case.barrier()
        actual, expected = [*map(repr, seen)], [*map(repr, wanted(x, y))]
        if not case.callback.ordered:
            actual, expected = sorted(actual), sorted(expected)
        if actual != expected:
            witness = f"the function received {seen}, expected {wanted(x, y)}"
            case.wrong("wrong operand", Stage.CALLBACK, witness)


def _mixed(x: Any, y: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments and named arguments: texts in all places among two numbers."""
    return [
        (("a", x, "b", y), {}),
        ((x, "a", "b", y), {}),
        (("a", "b", x, y, "c"), {}),
        ((x, "a"), {"first": "b", "second": y}),
        (("a", x), {"first": y, "second": "b"}),
    ]
