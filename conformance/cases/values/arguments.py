"""Several operands of a function, and several results: each is in its place.

Buffer and DLPack callbacks have a way of their own for one result, and another one for trees.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import Host

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
        wanted = _results(operands, tree)
        answer = case.host(partial(_results, tree=tree))

        def program(*given: Any, answer: Host = answer, wanted: Any = wanted) -> Any:
            like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), wanted)
            # One of the operands is made by the program.
            given = (given[0], given[1] + 0, given[2])
            host = lambda *arguments: answer(arguments)
            return case.implementation.invoke(case.callback, host, given, like, case.devices, spread=True)

        with case.part("with a tree of results" if tree else "with one result"):
            found = jax.block_until_ready(jax.jit(program)(*operands))
            if case.callback.returns_new_value:
                case.gives(wanted, lambda found=found: found)
                structures: list[Any] = [jax.tree.structure(each) for each in (found, wanted)]
                case.same("result", Stage.RESULT, *structures)
            case.saw(answer, [operands])
