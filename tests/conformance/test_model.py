"""The model of programs. Cells compare the most of it with JAX: here is what they cannot show."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.model.programs import Prediction, Program, all_programs
from conformance.model.transforms import TRANSFORMS
from conformance.model.worlds import RefusalError
from conformance.spec.external_callbacks import ALL_CALLBACKS
from conformance.spec.support_table import TABLE

pytestmark = pytest.mark.contract("C5")

CALLBACKS = {callback.name: callback for callback in ALL_CALLBACKS}


def predict(program: str, callback: str = "id_tap", devices: int = 2) -> Prediction:
    return Program(tuple(program.split("."))).prediction(CALLBACKS[callback], devices, inputs=[3.0])


# The base function at x: first 2x+1, unused 4x+3, last (2x+1)x, which is the result. A loop adds to x.
AT_3 = [("first", 7.0), ("unused", 15.0), ("last", 21.0)]
AT_4 = [("first", 9.0), ("unused", 19.0), ("last", 36.0)]
END = [("forward_end", 21.0)]


@pytest.mark.parametrize(
    ("program", "expected", "result"),
    [
        ("eager", AT_3, 21),
        ("while_body", AT_3 + AT_4, 3 + 21 + 36),
        ("grad", AT_3 + END, 4 * 3 + 1),
        # A checkpoint runs again after the forward pass; inside a loop it is replayed backwards.
        ("grad.remat", AT_3 + END + AT_3, 4 * 3 + 1),
        ("grad.scan.remat", [*AT_3, *AT_4, ("forward_end", 60.0), *AT_4, *AT_3], 1 + 13 + (4 * 4 + 1)),
        ("grad.custom_vjp", [*AT_3, *END, ("cotangent", 1.0)], 2),
        ("jvp.custom_jvp", [*AT_3, ("tangent", 1.0)], 21 + 2),
        # Both branches run, that for False first; element 3 is odd and sees x, element 4 is even and sees x + 6.
        ("vmap.cond", [("first", [19.0, 21.0]), ("first", [7.0, 9.0])], 21 + 10 * 21),
        # An element that has finished keeps its state: element 3 takes two steps, element 4 one.
        ("vmap.while_body", [("first", [7.0, 9.0]), ("first", [13.0, 15.0])], (3 + 21 + 13 * 6) + (4 + 36)),
    ],
)
def test_numbers_computed_by_hand(program: str, expected: list[tuple[str, object]], result: float) -> None:
    prediction = predict(program)
    # Without the operand axes of size one, of which each vmap adds one at the end.
    found = [(event.site, event.leaves[-1].squeeze().tolist()) for event in prediction.events]
    assert (found[::3] if program.startswith("vmap") else found) == expected
    assert float(prediction.results[0]) == result


def test_the_table_says_what_the_callbacks_promise() -> None:
    rows, columns = {each.row for each in TABLE}, {each.column for each in TABLE if "footnote" not in each.column}
    assert len(rows) * len(columns) == sum(each.column in columns for each in TABLE)
    for entry in TABLE:
        for program in entry.programs:
            try:
                predict(program, entry.callback)
            except RefusalError:
                assert not entry.supported, (entry, program)


def test_programs_can_be_judged() -> None:
    """Each pair of transforms, numbers that are exact in float32, and no value twice where a checker would mix them."""
    programs, composable = all_programs(), len(TRANSFORMS) - 1
    assert len({program.name for program in programs}) == len(programs)
    assert sum(len(program.names) == 2 for program in programs) == composable**2
    for program in programs:
        prediction = program.prediction(CALLBACKS["id_tap"], 8)
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
