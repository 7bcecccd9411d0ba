"""The cells of a plan: their ids, what is covered, what is left out and why, and how some are selected."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from conformance.cli.commands import main
from conformance.implementations import callbacks_asked_of, callbacks_of, why_not_offered
from conformance.implementations.jax import Jax
from conformance.model.programs import all_programs
from conformance.model.transforms import TRANSFORMS
from conformance.planning.axes import AXES
from conformance.planning.cells import CaseCell, Plan, ProgramCell, UnknownCellError, make_plan, parse_cell
from conformance.planning.coverage import coverage_of
from conformance.planning.covering import pairs_of
from conformance.planning.keywords import KeywordError, any_of, matcher
from conformance.planning.plan_file import PlanFileError, read_plan
from conformance.planning.sampling import ONLY_BATCHED
from conformance.planning.selection import (
    CPU_DEVICE_COUNTS,
    Choice,
    covering_of,
    pairs_in,
    plan_of,
    row_of,
    why_not,
)
from conformance.planning.smoke import smoke
from conformance.spec import configurations
from conformance.spec.callbacks import HOST_CALLBACKS, Callback, DeviceChoice
from conformance.spec.data import EXACT
from conformance.spec.external_callbacks import EXTERNAL_CALLBACKS
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C1")

IMPLEMENTATIONS = ("hostcb", "jax")


@pytest.fixture(scope="module")
def undrawn() -> Plan:
    """Without covering rows and compositions."""
    return make_plan(IMPLEMENTATIONS, [Topology("cpu", 1), Topology("cpu", 8)])


def programs_of(plan: Plan) -> list[ProgramCell]:
    return [cell for cell in plan.cells if isinstance(cell, ProgramCell)]


def test_ids_are_unique_and_lead_back_to_their_cells(cpu_plan: Plan) -> None:
    assert len({cell.id for cell in cpu_plan.cells}) == len(cpu_plan.cells)
    assert all(cell.promises for cell in cpu_plan.cells)
    # All of them take a minute.
    for cell in cpu_plan.cells[::97]:
        assert parse_cell(cell.id) == cell
    for cell_id, message in {
        "hostcb/id_tap/vmap": "no cell id",
        "hostcb/id_tap/vmapp/cpu-1dev": "unknown transform 'vmapp'",
        "hostcb/id_tab/vmap/cpu-1dev": "no callback 'id_tab'",
        "hostcb/call/case.explodes.jit/cpu-1dev": "no case",
        "jax/call/case.raises.jit/cpu-8dev": "no callback 'call'",
        "hostcb/id_tap/grad.grad.remat/cpu-1dev": "means nothing: nothing promises",
        "hostcb/id_tap/jit+int9-scalar-one/cpu-1dev": "no kind of data",
        "hostcb/id_tap/jit/cpu-8dev+everywhere": "no placement and no configuration",
        "hostcb/id_tap/jit/cpu-2dev+grid": "grid needs 4 devices",
        "hostcb/id_tap/jit+int64-scalar-one/cpu-1dev": "need x64",
    }.items():
        with pytest.raises(UnknownCellError, match=message):
            parse_cell(cell_id)


def test_what_is_not_planned_has_a_reason(undrawn: Plan) -> None:
    reasons = {cell.id: cell.reason for cell in undrawn.ineligible}
    assert all(reasons.values())
    ids = {cell.id for cell in undrawn.cells} | reasons.keys()
    for callback, program, count in itertools.product(HOST_CALLBACKS, all_programs(), (1, 8)):
        assert f"hostcb/{callback.name}/{program.name}/cpu-{count}dev" in ids
    for cell_id, words in {
        "hostcb/id_tap/grad.while_body/cpu-1dev": "reverse-mode",
        "hostcb/id_tap/pmap.pmap/cpu-8dev": "inside of maps",
        "hostcb/call/case.raises.jit/cpu-1dev": "largest topology",
        "jax/io_callback_sharding/jit/cpu-8dev": "device is chosen only",
        "jax/debug_callback_partitioned/shard_map/cpu-8dev": "has shards only",
        "jax/pure_callback_expand_dims/scan/cpu-8dev": "this is pure_callback",
        "jax/io_callback/grad.scan/cpu-1dev": "cpu-8dev alone",
        "jax/io_and_debug_ordered/vmap/cpu-8dev": "could come in another order",
    }.items():
        assert words in reasons[cell_id]


@pytest.mark.contract("C2")
def test_every_callback_meets_every_transform_and_cells_of_jax_are_cells_of_hostcb(undrawn: Plan) -> None:
    """Hostcb's others are of callbacks that JAX lacks; JAX alone stands for the runtime's own targets."""
    of: dict[str, dict[str, Any]] = {
        name: {c.id.split("/", 1)[1]: c for c in undrawn.cells if c.implementation == name} for name in IMPLEMENTATIONS
    }
    # stop_gradient alone means nothing.
    singles = [name for name in TRANSFORMS if name != "detached"]
    for implementation, callbacks in (("hostcb", HOST_CALLBACKS), ("jax", EXTERNAL_CALLBACKS)):
        for callback in callbacks:
            somewhere = callback.parts or callback.partitioned or callback.device_choice is DeviceChoice.LAST
            if not somewhere and callback.name not in ONLY_BATCHED:
                assert of[implementation].keys() >= {f"{callback.name}/{single}/cpu-8dev" for single in singles}
    assert {one.split("/")[0] for one in of["jax"].keys() - of["hostcb"]} == {"ffi_target", "buffer_target"}
    of_jax = {callback.name for callback in EXTERNAL_CALLBACKS}
    for cell in (of["hostcb"][one] for one in of["hostcb"].keys() - of["jax"]):
        assert cell.callback_name not in of_jax or (isinstance(cell, CaseCell) and cell.case.functions), cell.id


@pytest.mark.parametrize(
    ("cell_id", "further"),
    [
        ("hostcb/call/vmap.scan/cpu-8dev", set()),
        ("hostcb/call/scan/cpu-8dev", {("call", "inner", "scan")}),
        ("jax/pure_callback/vmap/cpu-8dev", {("pure_callback", "inner", "vmap")}),
    ],
)
def test_pairs_that_are_in_no_row(cell_id: str, further: set[tuple[str, str, str]]) -> None:
    cell = parse_cell(cell_id)
    row = row_of(cell)
    assert row is not None
    pairs, of_row = pairs_in(cell), pairs_of(row)
    assert {(left, AXES[b], right) for _, left, b, right in pairs if (_, left, b, right) not in of_row} == further


def test_methods_are_the_same_without_vmap() -> None:
    cell = parse_cell("jax/pure_callback/scan/cpu-8dev")
    assert {(0, method, AXES.index("outer"), "scan") for method in ONLY_BATCHED} <= {*pairs_in(cell)}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_is_covered(cpu_plan: Plan, implementation: str) -> None:
    """Every pair of values of two axes and every composition of two, or the reason why not."""
    coverage = coverage_of(cpu_plan, implementation, "cpu", CPU_DEVICE_COUNTS, Choice())
    covered = {pair for cell in cpu_plan.cells if cell.implementation == implementation for pair in pairs_in(cell)}
    axes = list(coverage.values)
    for pairs in coverage.pairs:
        a, b = (axes.index(axis) for axis in pairs.axes)
        seen = {(left, right) for one, left, other, right in covered if (one, other) == (a, b)}
        values = set(itertools.product(*(coverage.values[axis] for axis in pairs.axes)))
        assert not pairs.missing, pairs.axes
        assert pairs.covered == pairs.possible == len(seen & values)
        assert pairs.covered + len(pairs.excluded) == len(values)
        assert all(pairs.excluded.values()) and not seen & pairs.excluded.keys()
    names = [name for name in TRANSFORMS if name != "eager"]
    of_two = {pair for pair in itertools.product(names, repeat=2) if why_not(pair) is None}
    assert of_two <= {cell.program.names for cell in programs_of(cpu_plan)}
    for length in coverage.compositions:
        total = len(TRANSFORMS) if length.length == 1 else len(names) ** length.length
        assert length.possible + sum(length.excluded.values()) == total
        assert length.covered == length.possible or length.length > 2
    exact = {cell.callback.name for cell in programs_of(cpu_plan) if cell.data == EXACT}
    assert exact >= {one.name for one in callbacks_asked_of(implementation) if implementation != "jax" or not one.parts}


def test_smoke_is_small_and_has_each_callback_and_each_transform(cpu_plan: Plan) -> None:
    chosen = smoke(cpu_plan).cells
    assert set(chosen) <= set(cpu_plan.cells)
    assert len(chosen) < 200
    assert 0 < sum(isinstance(cell, CaseCell) for cell in chosen) < 8
    assert len({cell.topology for cell in chosen}) == 1
    for implementation in IMPLEMENTATIONS:
        cells = [c for c in chosen if isinstance(c, ProgramCell) and c.implementation == implementation]
        assert {cell.callback for cell in cells} == set(callbacks_of(implementation))
        assert {name for cell in cells for name in cell.program.names} == set(TRANSFORMS)


# A release that lacks something has the plan of the others, and leaves out with a reason.

LACKED, PRESENT = "jax/buffer_callback/jit/cpu-1dev", "jax/pure_callback/jit/cpu-1dev"
NO_BUFFERS, GSPMD = "jax has no buffer_callback", f"JAX {jax.__version__} has no option of_a_later_release"
LISTING = ["list", "--plan", "--implementation", "jax", "--devices", "2", "-k", "buffer_callback or gspmd"]


def test_a_plan_is_the_same_on_every_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = plan_of(["jax"], "cpu", (2,))
    assert not new.lacking
    assert main(LISTING) == 0
    listed = capsys.readouterr().out

    def lacks(self: Jax, callback: Callback) -> str | None:
        return "buffer_callback" if callback.function == "buffer_callback" else None

    # The installed JAX looks like a release without a callback and an option; the rows are drawn again.
    monkeypatch.setattr(Jax, "lacks", lacks)
    monkeypatch.setitem(configurations._OPTIONS_NEEDED, "gspmd", "of_a_later_release")
    caches = (why_not_offered, covering_of)
    try:
        for cache in caches:
            cache.cache_clear()
        old = plan_of(["jax"], "cpu", (2,))
        reasons = {}
        for cell in new.cells:
            if cell.callback_name.startswith("buffer_callback"):
                reasons[cell.id] = NO_BUFFERS
            elif isinstance(cell, ProgramCell) and cell.configuration == "gspmd":
                reasons[cell.id] = GSPMD
        assert {*reasons.values()} == {NO_BUFFERS, GSPMD}
        assert [cell.id for cell in old.cells] == [cell.id for cell in new.cells if cell.id not in reasons]
        given_reasons = {cell.id: cell.reason for cell in old.ineligible}
        assert {cell.id: given_reasons[cell.id] for cell in old.lacking} == reasons
        assert parse_cell(LACKED, any_release=True).id == LACKED
        with pytest.raises(UnknownCellError, match="means nothing: jax has no buffer_callback"):
            parse_cell(LACKED)
        assert main(LISTING) == 0
        assert capsys.readouterr().out == listed
        # A run of a file says what it leaves out.
        path, none, results = (tmp_path / name for name in ("plan.txt", "none.toml", "results"))
        path.write_text(f"# A plan.\n\n{PRESENT}  # this one\n{LACKED}\n{PRESENT}\n")
        none.touch()
        run = ["run", "-n", "1", "--cell", f"@{path}", "--results", str(results), "--expectations", str(none)]
        assert main(run) == 0
        assert f"LEFT OUT: 1 cell: {NO_BUFFERS}" in capsys.readouterr().out
        written = json.loads((results / "conformance-cpu.json").read_text())
        assert [cell["id"] for cell in written["cells"]] == [PRESENT]
        assert written["ineligible"] == [{"id": LACKED, "reason": NO_BUFFERS}]
    finally:
        for cache in caches:
            cache.cache_clear()


def test_wrong_files_of_cells_name_the_line(tmp_path: Path) -> None:
    for text, message in {
        "# Nothing.\n": "names no cell",
        f"{PRESENT}\njax/pure_callback/jitt/cpu-1dev\n": "line 2: unknown transform 'jitt'",
        "jax/pure_callback/grad.while_body/cpu-1dev": "line 1: .* JAX has no reverse-mode derivative of while_loop",
    }.items():
        (tmp_path / "plan.txt").write_text(text)
        with pytest.raises(PlanFileError, match=message):
            read_plan(tmp_path / "plan.txt")


# Expressions of `-k`.

CELL = "hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-8dev+sync"


def test_expressions_mean_what_they_mean_to_pytest() -> None:
    for expression, chosen in {
        "ID_TAP": True,
        "id_tap/vmap": True,
        "hostcb/*/vmap*": True,
        "id_tap/*": False,
        "not not call": False,
        "call or id_tap and scan": True,
        "id_tap or call and grad": True,
        "(id_tap or call) and grad": False,
        "not call and grad": False,
        "id_tap and scan and grad": False,
        "not(call)and(id_tap)": True,
        "scan+int8-matrix-dict and 8dev+sync": True,
    }.items():
        assert matcher(expression)(CELL) is chosen, expression
    assert any_of(["call", "vmap"])(CELL) and not any_of(["call", "pmap"])(CELL)
    for expression in ("", "id_tap and", "and id_tap", "id_tap vmap", "(id_tap", "id_tap)", "a & b"):
        with pytest.raises(KeywordError):
            matcher(expression)
