"""The semantic model against cases computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.model.programs import Prediction, Program, all_programs
from conformance.model.transforms import TRANSFORMS
from conformance.model.values import Value, fresh_infinitesimal, select
from conformance.model.worlds import ExpectedEvent, RefusalError, World
from conformance.spec.callbacks import HOST_CALLBACKS, Callback

pytestmark = pytest.mark.contract("C5")

CALLBACKS = {callback.name: callback for callback in HOST_CALLBACKS}
BATCH = ("batch", {"batch_dims": (0,)})
TRANSPOSE: tuple[str, dict[str, object]] = ("transpose", {})


def predict(program: str, callback: str, devices: int) -> Prediction:
    names = tuple(program.split("."))
    return Program(names).prediction(CALLBACKS[callback], devices, inputs=[3.0])


def first_run(program: str, callback: str = "id_tap", devices: int = 2) -> list[ExpectedEvent]:
    return list(predict(program, callback, devices).events)


def first_result(program: str, callback: str = "id_tap", devices: int = 2) -> float:
    return float(predict(program, callback, devices).results[0])


def sites_and_values(events: list[ExpectedEvent]) -> list[tuple[str, object]]:
    """Without the operand axes of size one, of which each vmap adds one at the end."""
    return [(event.site, event.leaves[-1].squeeze().tolist()) for event in events]


# The base function at x: first 2x+1, unused 4x+3, last (2x+1)x, which is the result.
AT_3 = [("first", 7.0), ("unused", 15.0), ("last", 21.0)]
AT_4 = [("first", 9.0), ("unused", 19.0), ("last", 36.0)]
AT_5 = [("first", 11.0), ("unused", 23.0), ("last", 55.0)]


def test_base_function() -> None:
    assert sites_and_values(first_run("eager")) == AT_3
    assert first_result("eager") == 21


def test_call_gives_back_one_more() -> None:
    # y = 2x+1 arrives, 2x+2 goes on: last is (2x+2)x, the result one more.
    events = sites_and_values(first_run("jit", "call"))
    assert events == [("first", 7.0), ("unused", 15.0), ("last", 24.0)]
    assert first_result("jit", "call") == 25


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("scan", AT_3 + AT_4),
        ("fori", AT_3 + AT_4 + AT_5),
        ("while_body", AT_3 + AT_4),
        ("while_cond", AT_3 + AT_4 + AT_5),
        ("cond", AT_3),
        ("jvp", AT_3),
        ("remat", AT_3),
        ("custom_jvp", AT_3),
        ("custom_vjp", AT_3),
        ("grad", [*AT_3, ("forward_end", 21.0)]),
    ],
)
def test_order_of_single_transforms(program: str, expected: list[tuple[str, object]]) -> None:
    assert sites_and_values(first_run(program)) == expected


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("scan", 21 + 36),
        ("fori", 21 + 36 + 55),
        ("while_body", 21 + 36),
        ("while_cond", 2 * 2 * 3),
        ("vmap", 21 + 36),
        ("pmap", 21 + 36),
        ("pjit", 21 + 36),
        ("grad", 4 * 3 + 1),
        ("jvp", 21 + 13),
        ("grad.grad", 4),
        ("grad.jvp", 13 + 4),
        ("jvp.grad", 13 + 4),
        ("grad.scan", 13 + (4 * 4 + 1)),  # the offsets are 0 and 1: grad has none
        ("grad.custom_jvp", 2),
        ("grad.custom_vjp", 2),
        ("jvp.custom_jvp", 21 + 2),
    ],
)
def test_results(program: str, result: float) -> None:
    assert first_result(program) == result


def test_checkpoint_under_grad_runs_again_after_the_forward_pass() -> None:
    assert sites_and_values(first_run("grad.remat")) == [*AT_3, ("forward_end", 21.0), *AT_3]


def test_checkpoint_inside_a_loop_is_replayed_backwards() -> None:
    assert sites_and_values(first_run("grad.scan.remat")) == [
        *AT_3,
        *AT_4,
        ("forward_end", 57.0),
        *AT_4,
        *AT_3,
    ]


def test_checkpointed_loop_is_replayed_forwards() -> None:
    events = sites_and_values(first_run("grad.remat.scan"))
    assert events[:6] == events[7:]


def test_a_saved_call_is_not_recomputed() -> None:
    events = sites_and_values(first_run("grad.remat.custom_vjp", "call"))
    assert [site for site, _ in events] == ["first", "unused", "last", "forward_end", "cotangent"]


def test_cotangents() -> None:
    assert sites_and_values(first_run("grad.custom_vjp"))[-1] == ("cotangent", 1.0)
    # The loop's two applications have one cotangent each.
    assert [e.site for e in first_run("grad.scan.custom_vjp")].count("cotangent") == 2


def test_cotangents_of_a_batch_are_those_of_its_elements() -> None:
    assert sites_and_values(first_run("grad.vmap.custom_vjp"))[-1] == ("cotangent", [1.0, 1.0])
    assert sites_and_values(first_run("grad.pjit.custom_vjp"))[-1] == ("cotangent", [1.0, 1.0])


def test_a_tapped_tangent_is_seen_where_the_rule_runs() -> None:
    assert sites_and_values(first_run("jvp.custom_jvp")) == [*AT_3, ("tangent", 1.0)]
    # A rule's own function is differentiated by the outer derivative, without the rule.
    assert first_result("grad.jvp.custom_jvp") == 13


def test_a_transposed_tap_sees_the_cotangent_and_its_mark() -> None:
    events = first_run("grad.custom_jvp")
    assert sites_and_values(events) == [*AT_3, ("forward_end", 21.0), ("tangent", 2.0)]
    assert events[-1].transforms == (TRANSPOSE,)
    assert first_run("grad.vmap.custom_jvp")[-1].transforms == (BATCH, TRANSPOSE)
    assert first_run("vmap.grad.custom_jvp")[-1].transforms == (TRANSPOSE, BATCH)
    assert first_run("vmap.grad.vmap.custom_jvp")[-1].transforms == (BATCH, TRANSPOSE, BATCH)
    assert [event.site for event in first_run("grad.remat.custom_jvp")].count("tangent") == 1


@pytest.mark.parametrize("callback", ["call_no_result", "id_tap_result", "id_tap_tree"])
def test_only_taps_that_return_their_operand_see_tangents(callback: str) -> None:
    assert "tangent" not in [event.site for event in first_run("jvp.custom_jvp", callback)]


def test_vmap_stacks_and_says_so() -> None:
    events = first_run("vmap")
    assert sites_and_values(events)[0] == ("first", [7.0, 9.0])
    assert all(event.transforms == (BATCH,) for event in events)


def test_nested_vmap() -> None:
    event = first_run("vmap.vmap")[0]
    assert event.leaves[0].shape == (2, 2, 1, 1)
    assert event.leaves[0].squeeze().tolist() == [[7.0, 13.0], [9.0, 15.0]]
    assert event.transforms == (BATCH, BATCH)


def test_tree_operand_has_an_unbatched_leaf() -> None:
    event = first_run("vmap", "id_tap_tree")[0]
    assert [leaf.squeeze().tolist() for leaf in event.leaves] == [5.0, [7.0, 9.0]]
    assert event.transforms == (("batch", {"batch_dims": (None, 0)}),)


def test_vmap_of_cond_runs_both_branches_false_first() -> None:
    # Batch elements 3 (odd: x) and 4 (even: x + 6).
    events = sites_and_values(first_run("vmap.cond"))
    assert [value for _, value in events[::3]] == [[19.0, 21.0], [7.0, 9.0]]
    assert first_result("vmap.cond") == 21 + 10 * 21


def test_vmap_of_while_shows_finished_elements_their_frozen_state() -> None:
    # Element 3 does two steps, element 4 one; its state stays at step 1.
    events = sites_and_values(first_run("vmap.while_body"))
    assert [value for _, value in events[::3]] == [[7.0, 9.0], [13.0, 15.0]]
    assert first_result("vmap.while_body") == (21 + 13 * 6) + 36


def test_vmap_methods() -> None:
    sequential = first_run("vmap", "call_sequential")
    assert sites_and_values(sequential)[:2] == [("first", 7.0), ("first", 9.0)]
    expanded = first_run("vmap.vmap", "call_expand_dims")[0]
    assert [leaf.shape for leaf in expanded.leaves] == [(1, 1), (2, 2, 1, 1)]
    broadcast = first_run("vmap.vmap", "call_broadcast_all")[0]
    assert [leaf.shape for leaf in broadcast.leaves] == [(2, 2), (2, 2, 1, 1)]


def test_nested_sequential_vmap_loops_over_the_inner_elements_outermost() -> None:
    values = [event.leaves[-1].item() for event in first_run("vmap.vmap", "call_sequential")[:4]]
    assert values == [7.0, 9.0, 13.0, 15.0]


@pytest.mark.parametrize("program", ["pmap", "shard_map"])
def test_every_device_sees_its_own_slice(program: str) -> None:
    by_device = [(event.device, event.leaves[0].item()) for event in first_run(program)[::3]]
    assert by_device == [(0, 7.0), (1, 9.0)]


def test_one_device_speaks_for_a_mesh() -> None:
    assert {event.device for event in first_run("pjit", devices=4)} == {0}
    assert {event.device for event in first_run("pjit", "id_tap_device_index", 4)} == {3}
    assert first_run("pjit", devices=4)[0].leaves[0].shape == (4,)
    assert first_run("pjit", devices=4)[0].transforms == ()


@pytest.mark.parametrize(
    ("program", "transform"),
    [
        ("grad", "differentiation"),
        ("jvp.scan", "differentiation"),
        ("vmap", "vmap"),
        ("pmap.vmap", "vmap"),
    ],
)
def test_call_is_refused(program: str, transform: str) -> None:
    with pytest.raises(RefusalError) as caught:
        first_run(program, "call")
    assert caught.value.transforms == (transform,)


@pytest.mark.parametrize("program", ["grad.custom_vjp", "jvp.custom_jvp", "jvp.while_cond", "remat"])
def test_call_is_accepted_where_no_derivative_reaches_it(program: str) -> None:
    assert first_run(program, "call")


def test_no_two_callbacks_of_a_run_see_equal_operands() -> None:
    # Only recomputation and frozen elements show a value again.
    repeats = {"remat", "vmap", "custom_vjp"}
    for program in all_programs():
        if repeats & {*program.names}:
            continue
        events = first_run(program.name, "id_tap", devices=8)
        seen = {(event.site, event.leaves[0].tobytes()) for event in events}
        assert len(seen) == len(events), program.name


def test_all_numbers_are_exact_in_float32() -> None:
    for program in all_programs():
        prediction = program.prediction(CALLBACKS["id_tap"], 8)
        for result in prediction.results:
            assert np.float32(result) == result, program.name
            assert abs(result) < 2**24, program.name


def test_batched_predicates_differ_between_elements_at_every_depth() -> None:
    # One element is odd and sees `x`, the other is even and sees `x` moved by the branch.
    for program in ("vmap.cond", "jit.vmap.cond", "jit.jit.vmap.cond"):
        prediction = predict(program, "id_tap", 2)
        false_branch, true_branch = (event.leaves[0] for event in prediction.events[::3])
        odd = (true_branch - 1) / 2 % 2 == 1
        assert odd.squeeze().tolist() == [True, False], program
        assert not np.array_equal(false_branch, true_branch)


def test_there_is_every_pair() -> None:
    composable = len(TRANSFORMS) - 1
    programs = all_programs()
    assert len({program.name for program in programs}) == len(programs)
    assert sum(len(program.names) == 2 for program in programs) == composable**2


def test_values_align_by_level() -> None:
    outer, inner = Value.batch(0, [0, 1]), Value.batch(1, [0, 10, 20])
    assert (inner + outer).data.tolist() == [[0, 10, 20], [1, 11, 21]]
    assert (outer * inner + Value.constant([1.0, 2.0])).data.shape == (2, 3, 2)
    assert (outer + inner).sum_batch(1, 3).data.tolist() == [30, 33]
    assert outer.sum_batch(1, 3).data.tolist() == [0, 3]


def test_second_derivatives() -> None:
    a, b = fresh_infinitesimal(), fresh_infinitesimal()
    x = Value.constant(3.0).perturb(a).perturb(b)
    cube = x * x * x
    assert cube.derivative(a).data == 27
    assert cube.derivative(a).derivative(b).data == 18
    assert cube.derivative(a).derivative(a).data == 0


def test_select_keeps_derivatives_apart() -> None:
    a = fresh_infinitesimal()
    batch = Value.batch(0, [1, 2])
    chosen = select(batch.less(Value.constant(2)), batch.perturb(a), batch)
    assert chosen.derivative(a).data.tolist() == [1, 0]


def test_worlds_share_their_history() -> None:
    callback: Callback = CALLBACKS["id_tap"]
    world = World(callback, 2)
    world.on_device(1).probe("here", Value.constant(1.0))
    assert [(event.site, event.device) for event in world.history] == [("here", 1)]
