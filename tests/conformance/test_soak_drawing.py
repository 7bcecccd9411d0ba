"""The plan of a soak: the same for a seed, independent of other threads, and with everything in it."""

from __future__ import annotations

import itertools

import pytest

from conformance.soak.codes import POSITIONS
from conformance.soak.drawing import Act, Deed, Special, rounds_of
from conformance.soak.shapes import CALLBACKS, EAGER, MESH, PMAP, SHARD_MAP, Shape

pytestmark = pytest.mark.contract("C64")

ROUNDS = 60
PROGRAMS = 4


def plan(seed: int = 0, thread: int = 0, devices: int = 8) -> list[Act]:
    rounds = itertools.islice(rounds_of(seed, thread, devices, PROGRAMS, 60), ROUNDS)
    return list(itertools.chain.from_iterable(rounds))


def test_a_seed_gives_the_same_plan() -> None:
    assert plan() == plan()
    assert plan() != plan(seed=8)
    assert plan() != plan(thread=2)


def test_everything_is_drawn() -> None:
    acts = plan()
    specs = [act.spec for act in acts if act.spec]
    assert {act.deed for act in acts} == {*Deed}
    assert {act.special for act in acts} == {*Special}
    assert {kind for spec in specs for kind in spec.kinds} == {*CALLBACKS}
    assert len({spec.layout for spec in specs}) == 5
    assert len({spec.form for spec in specs}) == 6
    assert max(spec.size for spec in specs) == 1 << 20


@pytest.mark.parametrize("seed", range(3))
def test_every_program_fits_into_its_codes(seed: int) -> None:
    for act in plan(seed):
        if act.spec:
            assert len(Shape(act.spec, act.spec.trips).steps) < POSITIONS
            assert act.spec.layout != MESH or not any(CALLBACKS[name].on_every_device for name in act.spec.kinds)


def test_one_device_has_no_programs_on_several() -> None:
    acts = plan(devices=1)
    assert not {act.spec.layout for act in acts if act.spec} & {PMAP, SHARD_MAP, MESH}


def test_what_runs_outside_of_jit_is_a_tap_most_of_the_time() -> None:
    kinds = [act.spec.kinds for act in plan() if act.spec and act.spec.layout == EAGER]
    assert kinds.count(("id_tap",)) > len(kinds) / 2


def test_each_round_has_its_own_programs() -> None:
    for acts in itertools.islice(rounds_of(3, 0, 8, PROGRAMS, 10), 5):
        made = [(act.deed, act.program) for act in acts[:PROGRAMS]]
        assert made == [(Deed.NEW_PROGRAM, place) for place in range(PROGRAMS)]
        assert len(acts) == PROGRAMS + 10
