"""The model of programs. Cells compare the most of it with JAX: here is what they cannot show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance.model.programs import Prediction, Program, all_programs
from conformance.model.transforms import TRANSFORMS
from conformance.model.worlds import RefusalError
from conformance.spec.external_callbacks import callback_named
from conformance.spec.support_table import TABLE

pytestmark = pytest.mark.contract("C5")


def predict(program: str, callback: str = "id_tap", devices: int = 2) -> Prediction:
    return Program(tuple(program.split("."))).prediction(callback_named(callback), devices, inputs=[3.0])


# The base function at x: first 2x+1, unused 4x+3, last (2x+1)x, which is the result. A loop adds to x.
AT_3, AT_4 = [7, 15, 21], [9, 19, 36]
BY_HAND: dict[str, tuple[list[Any], float]] = {
    "eager": (AT_3, 21),
    "while_body": (AT_3 + AT_4, 3 + 21 + 36),
    "grad": ([*AT_3, 21], 4 * 3 + 1),
    # A checkpoint runs again after the forward pass; inside a loop it is replayed backwards.
    "grad.remat": ([*AT_3, 21, *AT_3], 4 * 3 + 1),
    "grad.scan.remat": ([*AT_3, *AT_4, 60, *AT_4, *AT_3], 1 + 13 + (4 * 4 + 1)),
    "grad.custom_vjp": ([*AT_3, 21, 1], 2),
    "jvp.custom_jvp": ([*AT_3, 1], 21 + 2),
    # Both branches run, that for False first; element 3 is odd and sees x, element 4 is even and sees x + 6.
    "vmap.cond": ([[19, 21], [39, 43], [171, 210], [7, 9], [15, 19], [21, 36]], 21 + 10 * 21),
    # An element that has finished keeps its state: element 3 takes two steps, element 4 one.
    "vmap.while_body": ([[7, 9], [15, 19], [21, 36], [13, 15], [27, 31], [78, 105]], (3 + 21 + 13 * 6) + (4 + 36)),
}


def test_numbers_computed_by_hand() -> None:
    for name, (expected, result) in BY_HAND.items():
        prediction = predict(name)
        # Without the operand axes of size one, of which each vmap adds one at the end.
        assert [event.leaves[-1].squeeze().tolist() for event in prediction.events] == expected, name
        assert float(prediction.results[0]) == result, name


def test_the_table_says_what_the_callbacks_promise_and_programs_can_be_judged() -> None:
    """Each pair of transforms, numbers that are exact in float32, and no value twice where a checker would mix them."""
    rows, columns = {each.row for each in TABLE}, {each.column for each in TABLE if "footnote" not in each.column}
    assert len(rows) * len(columns) == sum(each.column in columns for each in TABLE)
    for entry in TABLE:
        for name in entry.programs:
            try:
                predict(name, entry.callback)
            except RefusalError:
                assert not entry.supported, (entry, name)
    programs, composable = all_programs(), len(TRANSFORMS) - 1
    assert len({program.name for program in programs}) == len(programs)
    assert sum(len(program.names) == 2 for program in programs) == composable**2
    for program in programs:
        prediction = program.prediction(callback_named("id_tap"), 8)
        for result in prediction.results:
            assert np.float32(result) == result and abs(result) < 2**24, program.name
        # Recomputation and elements that have finished show a value again.
        if not {"remat", "vmap", "custom_vjp"} & {*program.names}:
            found = predict(program.name, devices=8).events
            assert len({(each.site, each.leaves[0].tobytes()) for each in found}) == len(found), program.name
    for name in ("vmap.cond", "jit.jit.vmap.cond"):
        # Predicates differ between the elements of a batch at every depth.
        false_branch, true_branch = (event.leaves[0] for event in [*predict(name).events][::3])
        assert ((true_branch - 1) / 2 % 2 == 1).squeeze().tolist() == [True, False], name
        assert not np.array_equal(false_branch, true_branch)
