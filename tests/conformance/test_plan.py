"""The cells of the usual plan: their ids, what is covered, what is left out and why."""

from __future__ import annotations

import itertools

import pytest

from conformance.implementations import callbacks_asked_of, callbacks_of
from conformance.model.programs import all_programs
from conformance.model.transforms import TRANSFORMS
from conformance.planning.cells import CaseCell, Plan, ProgramCell, UnknownCellError, make_plan, parse_cell
from conformance.planning.coverage import Coverage, coverage_of
from conformance.planning.sampling import ONLY_BATCHED
from conformance.planning.selection import CPU_DEVICE_COUNTS, Choice, compositions, plan_of, row_of, why_not
from conformance.planning.smoke import smoke
from conformance.spec.callbacks import HOST_CALLBACKS, DeviceChoice
from conformance.spec.data import EXACT
from conformance.spec.external_callbacks import EXTERNAL_CALLBACKS
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C1")

IMPLEMENTATIONS = ("hostcb", "jax")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(IMPLEMENTATIONS, "cpu", CPU_DEVICE_COUNTS)


@pytest.fixture(scope="module")
def undrawn() -> Plan:
    """Without covering rows and compositions."""
    return make_plan(IMPLEMENTATIONS, [Topology("cpu", 1), Topology("cpu", 8)])


def programs_of(plan: Plan) -> list[ProgramCell]:
    return [cell for cell in plan.cells if isinstance(cell, ProgramCell)]


# Ids ----------------------------------------------------------------------------------------------------------------


def test_ids_are_unique_and_lead_back_to_their_cells(plan: Plan) -> None:
    assert len({cell.id for cell in plan.cells}) == len(plan.cells)
    assert all(cell.promises for cell in plan.cells)
    # All of them take a minute.
    for cell in plan.cells[::41]:
        assert parse_cell(cell.id) == cell


@pytest.mark.parametrize(
    ("cell_id", "message"),
    [
        ("hostcb/id_tap/vmap", "no cell id"),
        ("hostcb/id_tap/vmapp/cpu-1dev", "unknown transform 'vmapp'"),
        ("hostcb/id_tab/vmap/cpu-1dev", "no callback 'id_tab'"),
        ("hostcb/call/case.explodes.jit/cpu-1dev", "no case"),
        ("jax/call/case.raises.jit/cpu-8dev", "no callback 'call'"),
        ("hostcb/id_tap/grad.grad.remat/cpu-1dev", "means nothing: nothing promises"),
        ("hostcb/id_tap/jit+int9-scalar-one/cpu-1dev", "no kind of data"),
        ("hostcb/id_tap/jit/cpu-8dev+everywhere", "no placement and no configuration"),
        ("hostcb/id_tap/jit/cpu-2dev+grid", "grid needs 4 devices"),
        ("hostcb/id_tap/jit+int64-scalar-one/cpu-1dev", "need x64"),
    ],
)
def test_an_id_of_no_cell_is_refused(cell_id: str, message: str) -> None:
    with pytest.raises(UnknownCellError, match=message):
        parse_cell(cell_id)


# What is planned ----------------------------------------------------------------------------------------------------


def test_what_is_not_planned_has_a_reason(undrawn: Plan) -> None:
    reasons = {cell.id: cell.reason for cell in undrawn.ineligible}
    assert all(reasons.values())
    ids = {cell.id for cell in undrawn.cells} | reasons.keys()
    for callback, program, count in itertools.product(HOST_CALLBACKS, all_programs(), (1, 8)):
        assert f"hostcb/{callback.name}/{program.name}/cpu-{count}dev" in ids
    for cell_id, words in {
        "hostcb/id_tap/grad.while_body/cpu-1dev": "reverse-mode",
        "hostcb/id_tap/jvp.custom_vjp/cpu-1dev": "forward-mode",
        "hostcb/id_tap/pmap.pmap/cpu-8dev": "inside of maps",
        "hostcb/call/case.raises.jit/cpu-1dev": "largest topology",
        "hostcb/id_tap/vmap.detached/cpu-8dev": "only matters once",
        "jax/io_callback_sharding/jit/cpu-8dev": "device is chosen only",
        "jax/debug_callback_partitioned/shard_map/cpu-8dev": "has shards only",
        "jax/pure_callback_expand_dims/scan/cpu-8dev": "this is pure_callback",
        "jax/io_callback/grad.scan/cpu-1dev": "cpu-8dev alone",
        "jax/io_and_debug_ordered/vmap/cpu-8dev": "could come in another order",
    }.items():
        assert words in reasons[cell_id]


def test_every_callback_meets_every_transform(undrawn: Plan) -> None:
    planned = {cell.id for cell in undrawn.cells}
    # stop_gradient alone means nothing.
    singles = [name for name in TRANSFORMS if name != "detached"]
    for implementation, callbacks in (("hostcb", HOST_CALLBACKS), ("jax", EXTERNAL_CALLBACKS)):
        for callback in callbacks:
            somewhere = callback.parts or callback.partitioned or callback.device_choice is DeviceChoice.LAST
            if not somewhere and callback.name not in ONLY_BATCHED:
                assert planned >= {f"{implementation}/{callback.name}/{single}/cpu-8dev" for single in singles}


@pytest.mark.contract("C2")
def test_cells_of_jax_are_cells_of_hostcb(undrawn: Plan) -> None:
    """Hostcb's others are of callbacks that JAX lacks; JAX alone stands for the runtime's own targets."""
    ids = {
        name: {c.id.split("/", 1)[1]: c for c in undrawn.cells if c.implementation == name} for name in IMPLEMENTATIONS
    }
    assert {one.split("/")[0] for one in ids["jax"].keys() - ids["hostcb"]} == {"ffi_target", "buffer_target"}
    of_jax = {callback.name for callback in EXTERNAL_CALLBACKS}
    for cell in (ids["hostcb"][one] for one in ids["hostcb"].keys() - ids["jax"]):
        assert cell.callback_name not in of_jax or (isinstance(cell, CaseCell) and cell.case.functions), cell.id


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def coverage(plan: Plan, request: pytest.FixtureRequest) -> Coverage:
    return coverage_of(plan, request.param, "cpu", CPU_DEVICE_COUNTS, Choice())


def test_every_pair_of_axis_values_is_covered_or_has_a_reason(plan: Plan, coverage: Coverage) -> None:
    rows = [row_of(cell) for cell in plan.cells if cell.implementation == coverage.implementation]
    axes = list(coverage.values)
    for pairs in coverage.pairs:
        a, b = (axes.index(axis) for axis in pairs.axes)
        seen = {(row[a], row[b]) for row in rows if row}
        values = set(itertools.product(*(coverage.values[axis] for axis in pairs.axes)))
        assert not pairs.missing, pairs.axes
        assert pairs.covered == pairs.possible == len(seen & values)
        assert pairs.covered + len(pairs.excluded) == len(values)
        assert all(pairs.excluded.values()) and not seen & pairs.excluded.keys()


def test_every_composition_of_two_is_there(plan: Plan, coverage: Coverage) -> None:
    names = [name for name in TRANSFORMS if name != "eager"]
    of_two = {pair for pair in itertools.product(names, repeat=2) if why_not(pair) is None}
    assert of_two <= {cell.program.names for cell in programs_of(plan)}
    assert [length.length for length in coverage.compositions] == [1, 2, 3, 4]
    for length in coverage.compositions:
        total = len(TRANSFORMS) if length.length == 1 else len(names) ** length.length
        assert length.possible + sum(length.excluded.values()) == total
        assert length.covered == length.possible or length.length > 2


@pytest.mark.parametrize("length", [3, 4])
def test_drawn_compositions_mean_something_and_nearly_every_transform_is_among_them(length: int) -> None:
    drawn = compositions(length, 16, 0)
    assert len(set(drawn)) == 16
    assert not [names for names in drawn if why_not(names)]
    assert len({name for names in drawn for name in names}) >= len(TRANSFORMS) - 3
    assert compositions(length, 16, 1) != drawn


def test_what_composed_programs_must_not_miss(plan: Plan) -> None:
    exact = {(cell.implementation, cell.callback.name) for cell in programs_of(plan) if cell.data == EXACT}
    for implementation in IMPLEMENTATIONS:
        for callback in callbacks_asked_of(implementation):
            if not (implementation == "jax" and callback.parts):
                assert (implementation, callback.name) in exact, "several KiB and a negative zero"
    tapping = [cell for cell in programs_of(plan) if cell.taps_tangents]
    transposed = {cell.callback.name for cell in tapping if cell.program.names[-2:] == ("grad", "custom_jvp")}
    assert transposed == {"id_tap", "id_tap_device", "id_tap_device_index", "id_print"}


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
