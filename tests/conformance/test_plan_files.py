"""A plan is the same on every release: what a release lacks is left out of the run, with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from conformance.cli.commands import main
from conformance.implementations import why_not_offered
from conformance.implementations.jax import Jax
from conformance.planning.cells import CaseCell, Plan, ProgramCell, UnknownCellError, parse_cell
from conformance.planning.coverage import coverage_of
from conformance.planning.plan_file import PlanFileError, read_plan
from conformance.planning.selection import Choice, covering_of, plan_of, whole_plan_of
from conformance.planning.smoke import smoke
from conformance.spec import configurations
from conformance.spec.callbacks import Callback

pytestmark = pytest.mark.contract("C1")

DEVICES = (2,)
NO_METHOD = "vmap_method='sequential_unrolled' in an old release"
NO_BUFFERS = "buffer_callback"
GSPMD = "jax_of_a_later_release"


def plan_here() -> Plan:
    return plan_of(["jax"], "cpu", DEVICES)


@pytest.fixture(scope="module")
def everything() -> Plan:
    """The plan of a release that lacks nothing."""
    plan = plan_here()
    assert not plan.lacking
    return plan


@pytest.fixture
def old_release(everything: Plan, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the installed JAX look like a release without some callbacks, an option and a function."""

    def lacks(self: Jax, callback: Callback) -> str | None:
        if callback.function == "buffer_callback":
            return NO_BUFFERS
        return NO_METHOD if callback.name == "pure_callback_sequential_unrolled" else None

    monkeypatch.setattr(Jax, "lacks", lacks)
    monkeypatch.setitem(configurations._OPTIONS_NEEDED, "gspmd", GSPMD)
    monkeypatch.delattr(jax, "no_tracing")
    why_not_offered.cache_clear()
    yield
    why_not_offered.cache_clear()


def why_lacking(cell: ProgramCell | CaseCell) -> str | None:
    """An independent statement of what this release lacks."""
    if isinstance(cell, CaseCell) and cell.case.kind == "without_tracing":
        return f"JAX {jax.__version__} has no jax.no_tracing"
    if cell.callback_name.startswith("buffer_callback"):
        return f"jax has no {NO_BUFFERS}"
    if cell.callback_name == "pure_callback_sequential_unrolled":
        return f"jax has no {NO_METHOD}"
    gspmd = isinstance(cell, ProgramCell) and cell.configuration == "gspmd"
    return f"JAX {jax.__version__} has no option {GSPMD}" if gspmd else None


def test_an_old_release_has_the_plan_of_a_new_one_but_for_what_it_lacks(everything: Plan, old_release: None) -> None:
    # The rows are drawn again, on the old release.
    covering_of.cache_clear()
    plan = plan_here()
    reasons = {cell.id: why_lacking(cell) for cell in everything.cells}
    assert [cell.id for cell in plan.cells] == [cell_id for cell_id, reason in reasons.items() if not reason]
    said = {cell.id: cell.reason for cell in plan.ineligible}
    assert {cell.id: said[cell.id] for cell in plan.lacking} == {i: reason for i, reason in reasons.items() if reason}
    assert len(plan.cells) + len(plan.ineligible) == len(everything.cells) + len(everything.ineligible)
    whole = whole_plan_of(["jax"], "cpu", DEVICES)
    assert (whole.cells, whole.ineligible) == (everything.cells, everything.ineligible)
    smaller = smoke(whole).on_this_release()
    assert {cell.id for cell in (*smaller.cells, *smaller.lacking)} == {cell.id for cell in smoke(everything).cells}


def test_an_outside_implementation_is_covered_by_what_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for callbacks that it never had would leave pairs uncovered on every release."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    plan = plan_of(["own_callbacks"], "cpu", (1,))
    assert {cell.callback_name for cell in plan.lacking} >= {"id_tap", "debug_callback"}
    reasons = {cell.id: cell.reason for cell in plan.ineligible}
    assert reasons["own_callbacks/debug_callback/jit/cpu-1dev"] == "own_callbacks has no debug.callback"
    assert not [cell.id for cell in plan.lacking if "+" in cell.id]
    coverage = coverage_of(plan, "own_callbacks", "cpu", (1,), Choice())
    assert not [pairs.missing for pairs in coverage.pairs if pairs.missing]


# Files of plans --------------------------------------------------------------------------------------------------

LACKED = "jax/buffer_callback/jit/cpu-1dev"
PRESENT = "jax/pure_callback/jit/cpu-1dev"


def test_a_cell_that_the_release_lacks_is_no_cell_here(old_release: None) -> None:
    assert parse_cell(LACKED, any_release=True).id == LACKED
    with pytest.raises(UnknownCellError, match="means nothing: jax has no buffer_callback"):
        parse_cell(LACKED)


LISTING = ["list", "--plan", "--implementation", "jax", "--devices", "2", "-k", "buffer_callback or gspmd"]


def test_the_file_is_the_same_on_every_release(
    everything: Plan, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(LISTING) == 0
    new = capsys.readouterr().out
    request.getfixturevalue("old_release")
    assert main(LISTING) == 0
    assert capsys.readouterr().out == new
    (tmp_path / "plan").write_text(new)
    ids = [cell.id for cell in everything.select(["buffer_callback or gspmd"]).cells]
    assert [cell.id for cell in read_plan(tmp_path / "plan")] == ids


def planned(folder: Path, text: str) -> Path:
    path = folder / "plan.txt"
    path.write_text(text)
    return path


def test_a_run_of_a_file_leaves_out_what_the_release_lacks_and_says_so(
    old_release: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = planned(tmp_path, f"# A plan.\n\n{PRESENT}  # this one\n{LACKED}\n{PRESENT}\n")
    results = tmp_path / "results"
    nothing_known = ["--expectations", str(tmp_path / "none.toml")]
    (tmp_path / "none.toml").touch()
    assert main(["run", "-n", "1", "--cell", f"@{path}", "--results", str(results), *nothing_known]) == 0
    assert f"LEFT OUT: 1 cell: jax has no {NO_BUFFERS}" in capsys.readouterr().out
    written = json.loads((results / "conformance-cpu.json").read_text())
    assert [cell["id"] for cell in written["cells"]] == [PRESENT]
    assert written["ineligible"] == [{"id": LACKED, "reason": f"jax has no {NO_BUFFERS}"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Nothing.\n", "names no cell"),
        (f"{PRESENT}\njax/pure_callback/jitt/cpu-1dev\n", "line 2: unknown transform 'jitt'"),
        ("typing error", "line 1: 'typing error' is no cell id"),
        ("jax/pure_callback/grad.while_body/cpu-1dev", "line 1: .* JAX has no reverse-mode derivative of while_loop"),
    ],
)
def test_wrong_files_name_the_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match=message):
        read_plan(planned(tmp_path, text))
