"""What a run chooses: covering rows, drawn compositions, the smoke run, and the report of what is covered."""

from __future__ import annotations

import itertools
import json

import pytest

from conformance.cli import commands as cli
from conformance.implementations import callbacks_asked_of, callbacks_of
from conformance.model.transforms import TRANSFORMS
from conformance.planning.cells import CaseCell, Plan, ProgramCell, parse_cell
from conformance.planning.coverage import Coverage, coverage_of
from conformance.planning.covering import Constraint, Space, cover, pairs_of
from conformance.planning.selection import CPU_DEVICE_COUNTS, Choice, compositions, plan_of, row_of, why_not
from conformance.planning.smoke import smoke
from conformance.spec.data import EXACT

pytestmark = pytest.mark.contract("C1")

IMPLEMENTATIONS = ("hostcb", "jax")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(IMPLEMENTATIONS, "cpu", CPU_DEVICE_COUNTS)


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def coverage(plan: Plan, request: pytest.FixtureRequest) -> Coverage:
    return coverage_of(plan, request.param, "cpu", CPU_DEVICE_COUNTS, Choice())


# Covering arrays -------------------------------------------------------------------------------------------------


def no_zero_after_one(a: str, b: str) -> str | None:
    return "one, then zero" if (a, b) == ("1", "0") else None


def c_follows(a: str, b: str, c: str) -> str | None:
    return None if (a, b) != ("0", "0") or c == "2" else "two is all that follows zeros"


VALUES = {"a": "012", "b": "01", "c": "012", "d": "01234"}
SMALL = {axis: list(values) for axis, values in VALUES.items()}
CONSTRAINTS = (Constraint(("a", "b"), no_zero_after_one), Constraint(("a", "b", "c"), c_follows))


def allowed_rows() -> list[tuple[str, ...]]:
    rows = itertools.product(*SMALL.values())
    return [row for row in rows if not no_zero_after_one(*row[:2]) and not c_follows(*row[:3])]


@pytest.mark.parametrize("seed", range(20))
def test_every_pair_that_a_row_can_hold_is_covered_and_no_other(seed: int) -> None:
    covering = cover(Space(SMALL, CONSTRAINTS), [], seed)
    possible = {pair for row in allowed_rows() for pair in pairs_of(row)}
    assert covering.covered == possible
    assert set(covering.rows) <= set(allowed_rows())
    assert covering.excluded.keys() == set(Space(SMALL).pairs()) - possible
    assert not covering.missing


def test_excluded_pairs_say_why() -> None:
    blocked = Constraint(("c", "d"), lambda c, d: "d is never four" if d == "4" else None)
    covering = cover(Space(SMALL, (*CONSTRAINTS, blocked)), [], 0)
    assert covering.excluded[0, "1", 1, "0"] == "one, then zero"
    assert covering.excluded[0, "0", 3, "4"].startswith("nothing goes with both: ")


def test_rows_are_few() -> None:
    covering = cover(Space({axis: list("01234567") for axis in "abcdef"}), [], 0)
    assert len(covering.rows) < 2 * 8 * 8, f"{len(covering.rows)} rows, where 64 is the least there can be"


def test_rows_that_are_present_need_not_be_made() -> None:
    space = Space(SMALL, CONSTRAINTS)
    assert not cover(space, allowed_rows(), 0).rows


def test_the_same_seed_gives_the_same_rows() -> None:
    first, second, other = (cover(Space(SMALL, CONSTRAINTS), [], seed).rows for seed in (0, 0, 1))
    assert first == second
    assert first != other


# The plan --------------------------------------------------------------------------------------------------------


def test_ids_are_unique_and_lead_back_to_their_cells(plan: Plan) -> None:
    assert len({cell.id for cell in plan.cells}) == len(plan.cells)
    for cell in plan.cells:
        assert parse_cell(cell.id) == cell


def test_every_pair_of_axis_values_is_covered_or_excluded_with_a_reason(coverage: Coverage) -> None:
    for pairs in coverage.pairs:
        assert not pairs.missing, pairs.axes
        assert pairs.covered == pairs.possible
        assert all(pairs.excluded.values())


def test_coverage_agrees_with_an_independent_count(plan: Plan, coverage: Coverage) -> None:
    rows = [row_of(cell) for cell in plan.cells if cell.implementation == coverage.implementation]
    axes = list(coverage.values)
    for pairs in coverage.pairs:
        a, b = (axes.index(axis) for axis in pairs.axes)
        seen = {(row[a], row[b]) for row in rows if row}
        values = set(itertools.product(*(coverage.values[axis] for axis in pairs.axes)))
        assert pairs.covered == len(seen & values)
        assert pairs.covered + len(pairs.excluded) == len(values)
        assert not seen & pairs.excluded.keys()


def test_each_callback_has_several_kib_and_a_negative_zero(plan: Plan) -> None:
    exact = {(cell.implementation, cell.callback.name) for cell in programs_of(plan) if cell.data == EXACT}
    for implementation in ("hostcb", "jax"):
        for callback in callbacks_asked_of(implementation):
            if not (implementation == "jax" and callback.parts):
                assert (implementation, callback.name) in exact


def test_each_tap_that_returns_its_operand_is_transposed(plan: Plan) -> None:
    tapping = [cell for cell in programs_of(plan) if cell.taps_tangents]
    transposed = {cell.callback.name for cell in tapping if cell.program.names[-2:] == ("grad", "custom_jvp")}
    assert transposed == {"id_tap", "id_tap_device", "id_tap_device_index", "id_print"}


def programs_of(plan: Plan) -> list[ProgramCell]:
    return [cell for cell in plan.cells if isinstance(cell, ProgramCell)]


def test_every_composition_of_two_is_there(plan: Plan, coverage: Coverage) -> None:
    names = [name for name in TRANSFORMS if name != "eager"]
    of_two = {pair for pair in itertools.product(names, repeat=2) if why_not(pair) is None}
    there = {c.program.names for c in plan.cells if isinstance(c, ProgramCell) and len(c.program.names) == 2}
    assert of_two <= there
    assert [length.length for length in coverage.compositions] == [1, 2, 3, 4]
    for length in coverage.compositions:
        total = len(TRANSFORMS) if length.length == 1 else len(names) ** length.length
        assert length.possible + sum(length.excluded.values()) == total
        assert length.covered == length.possible or length.length > 2


@pytest.mark.parametrize("length", [3, 4])
def test_drawn_compositions_mean_something_and_every_transform_is_among_them(length: int) -> None:
    drawn = compositions(length, 16, 0)
    assert len(set(drawn)) == 16
    assert not [names for names in drawn if why_not(names)]
    assert len({name for names in drawn for name in names}) >= len(TRANSFORMS) - 3


def test_another_seed_draws_others() -> None:
    def ids(seed: int) -> set[str]:
        return {cell.id for cell in plan_of(["jax"], "cpu", (1,), Choice(seed)).cells}

    assert ids(3) == ids(3)
    assert ids(3) != ids(4)


def test_one_device_of_another_platform_is_covered_as_well() -> None:
    coverage = coverage_of(plan_of(["jax"], "cuda", (1,)), "jax", "cuda", (1,), Choice())
    assert not [pairs.missing for pairs in coverage.pairs if pairs.missing]
    assert "sync" not in coverage.values["configuration"]


# The smoke run ---------------------------------------------------------------------------------------------------


def test_smoke_is_small_and_has_each_callback_and_each_transform(plan: Plan) -> None:
    chosen = smoke(plan).cells
    assert set(chosen) <= set(plan.cells)
    assert len(chosen) < 200
    assert 0 < sum(isinstance(cell, CaseCell) for cell in chosen) < 8
    assert len({cell.topology for cell in chosen}) == 1
    for implementation in IMPLEMENTATIONS:
        cells = [c for c in chosen if isinstance(c, ProgramCell) and c.implementation == implementation]
        assert {cell.callback for cell in cells} == set(callbacks_of(implementation))
        assert {name for cell in cells for name in cell.program.names} == set(TRANSFORMS)


# The command line ------------------------------------------------------------------------------------------------


def test_list_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["list", "--coverage", "--devices", "1", "--implementation", "jax"]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    for pairs in report["pairs"]:
        assert f"{' x '.join(pairs['axes'])}: {pairs['covered']}/{pairs['possible']}" in text
    assert "missing" not in text
    assert "excluded 1: JAX refuses forward-mode derivatives of custom_vjp functions" in text


@pytest.mark.parametrize(
    ("cell_id", "message"),
    [
        ("hostcb/id_tap/jit+int9-scalar-one/cpu-1dev", "no kind of data"),
        ("hostcb/id_tap/jit/cpu-8dev+everywhere", "no placement and no configuration"),
        ("hostcb/id_tap/jit/cpu-2dev+grid", "grid needs 4 devices"),
        ("hostcb/id_tap/jit+int64-scalar-one/cpu-1dev", "need x64"),
    ],
)
def test_unknown_variants_say_why(cell_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_cell(cell_id)
