"""Cells, ids, eligibility and topologies."""

from __future__ import annotations

import pytest

from conformance.cases.harness.catalogue import all_cases
from conformance.model.programs import all_programs
from conformance.planning.cells import Plan, UnknownCellError, make_plan, parse_cell
from conformance.planning.sampling import ONLY_BATCHED, PROGRAMS_WITH_AN_ORDER
from conformance.spec.callbacks import HOST_CALLBACKS, Callback, DeviceChoice
from conformance.spec.depths import Depth
from conformance.spec.external_callbacks import EXTERNAL_CALLBACKS
from conformance.spec.topology import Topology, WrongPlatformError, check_devices, parse_topology
from conformance.spec.xla_flags import QUICK_COMPILATION, known

pytestmark = pytest.mark.contract("C1")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(["hostcb", "jax"], [Topology("cpu", 1), Topology("cpu", 8)])


def test_ids_are_unique_and_lead_back_to_their_cells(plan: Plan) -> None:
    assert len({cell.id for cell in plan.cells}) == len(plan.cells)
    for cell in plan.cells:
        assert parse_cell(cell.id) == cell


def test_nothing_is_silently_absent(plan: Plan) -> None:
    ids = {cell.id for cell in (*plan.cells, *plan.ineligible)}
    for callback in HOST_CALLBACKS:
        for program in all_programs():
            for topology in ("cpu-1dev", "cpu-8dev"):
                assert f"hostcb/{callback.name}/{program.name}/{topology}" in ids


def test_every_callback_meets_every_single_transform(plan: Plan) -> None:
    planned = {cell.id for cell in plan.cells}
    # stop_gradient alone means nothing.
    singles = [program.name for program in all_programs() if len(program.names) == 1 and program.name != "detached"]
    for callback in HOST_CALLBACKS:
        if callback.name != "id_tap_device_index":
            for single in singles:
                assert f"hostcb/{callback.name}/{single}/cpu-8dev" in planned
    for callback in EXTERNAL_CALLBACKS:
        if callback.name not in ONLY_BATCHED and "pjit" not in only_programs(callback):
            for single in only_programs(callback) or singles:
                assert f"jax/{callback.name}/{single}/cpu-8dev" in planned, callback.name


def only_programs(callback: Callback) -> tuple[str, ...]:
    """Where alone this callback means anything; empty for everywhere."""
    if callback.parts:
        return tuple(name for name in PROGRAMS_WITH_AN_ORDER if name != "pjit")
    return ("pjit",) if callback.partitioned or callback.device_choice is DeviceChoice.LAST else ()


@pytest.mark.contract("C2")
def test_implementations_have_the_same_cells(plan: Plan) -> None:
    """All of JAX's cells are hostcb's as well, and hostcb's others are of callbacks that JAX has not.

    Except for the runtime's own targets, which only JAX's implementation stands for, and for cases that use functions
    of hostcb.
    """
    ids = {name: {c.id.split("/", 1)[1] for c in plan.cells if c.implementation == name} for name in ("hostcb", "jax")}
    runtimes = {cell_id for cell_id in ids["jax"] if cell_id.split("/")[0] in ("ffi_target", "buffer_target")}
    assert runtimes
    assert ids["jax"] - runtimes <= ids["hostcb"]
    of_jax = {callback.name for callback in EXTERNAL_CALLBACKS}
    of_hostcb = {case.name for case in all_cases() if case.functions}
    others = {tuple(cell_id.split("/")[:2]) for cell_id in ids["hostcb"] - ids["jax"]}
    assert not {(callback, program) for callback, program in others if callback in of_jax and program not in of_hostcb}


def test_ineligible_cells_say_why(plan: Plan) -> None:
    reasons = {cell.id: cell.reason for cell in plan.ineligible}
    assert "reverse-mode" in reasons["hostcb/id_tap/grad.while_body/cpu-1dev"]
    assert "forward-mode" in reasons["hostcb/id_tap/jvp.custom_vjp/cpu-1dev"]
    assert "inside of maps" in reasons["hostcb/id_tap/pmap.pmap/cpu-8dev"]
    assert "largest topology" in reasons["hostcb/call/case.raises.jit/cpu-1dev"]
    assert "only matters once" in reasons["hostcb/id_tap/vmap.detached/cpu-8dev"]
    assert "device is chosen only" in reasons["jax/io_callback_sharding/jit/cpu-8dev"]
    assert "has shards only" in reasons["jax/debug_callback_partitioned/shard_map/cpu-8dev"]
    assert "this is pure_callback" in reasons["jax/pure_callback_expand_dims/scan/cpu-8dev"]
    assert "cpu-8dev only" in reasons["jax/io_callback/grad.scan/cpu-1dev"]
    assert "could come in another order" in reasons["jax/io_and_debug_ordered/vmap/cpu-8dev"]
    assert all(reasons.values())


def test_cells_cite_promises(plan: Plan) -> None:
    assert all(cell.promises for cell in plan.cells)
    assert parse_cell("hostcb/id_tap/vmap.scan/cpu-1dev").promises == ("H1", "H4", "H5", "H7")
    assert parse_cell("jax/io_callback/pmap.scan/cpu-8dev").promises == ("H4", "H9", "X3")
    assert parse_cell("jax/io_callback_ordered/scan/cpu-8dev").promises == ("H4", "H5", "X3")
    assert parse_cell("jax/io_callback/table.vmap/cpu-8dev").promises == ("X1",)


def test_selection(plan: Plan) -> None:
    chosen = plan.select(["id_tap/vmap.s", "*/call/jit/cpu-?dev"])
    assert {cell.id.split("/", 1)[1] for cell in chosen.cells} == {
        f"{rest}/cpu-{count}dev"
        for rest in ("id_tap/vmap.scan", "id_tap/vmap.shard_map", "call/jit")
        for count in (1, 8)
    }
    assert plan.select(["no_such_cell"]) == Plan((), ())


@pytest.mark.parametrize(
    ("cell_id", "message"),
    [
        ("hostcb/id_tap/vmap", "no cell id"),
        ("hostcb/id_tap/vmap/cpu", "no topology"),
        ("hostcb/id_tap/vmapp/cpu-1dev", "unknown transform 'vmapp'"),
        ("hostcb/id_tab/vmap/cpu-1dev", "no callback 'id_tab'"),
        ("hostcb/call/case.explodes.jit/cpu-1dev", "no case"),
        ("jax/id_tap/jit/cpu-1dev", "no callback 'id_tap'"),
        ("jax/call/case.raises.jit/cpu-8dev", "no callback 'call'"),
        ("jax/pure_callback/table.speed/cpu-1dev", "the table has no 'table.speed'"),
        ("hostcb/id_tap/jit.eager/cpu-1dev", "means nothing"),
        ("hostcb/id_tap/grad.grad.remat/cpu-1dev", "means nothing: nothing promises"),
    ],
)
def test_unknown_cells_say_why(cell_id: str, message: str) -> None:
    with pytest.raises(UnknownCellError, match=message):
        parse_cell(cell_id)


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("cpu-8dev", Topology("cpu", 8)),
        ("cpu-8dev+sync", Topology("cpu", 8, "sync")),
        ("cpu-2x4", Topology("cpu", 8, processes=2)),
        ("tpu-4dev@compile", Topology("tpu", 4, depth=Depth.COMPILE)),
        ("my-npu-2x1+sync@lower", Topology("my-npu", 2, "sync", 2, Depth.LOWER)),
    ],
)
def test_names_of_topologies(name: str, topology: Topology) -> None:
    assert topology.name == name
    assert parse_topology(name) == (topology, [])
    assert parse_cell(f"hostcb/id_tap/jit/{name}").id == f"hostcb/id_tap/jit/{name}"


def test_the_depth_comes_after_the_options_of_a_cell() -> None:
    cell = parse_cell("hostcb/id_tap/jit/tpu-4dev+part+x64@lower")
    assert (cell.placement, cell.configuration, cell.topology.depth) == ("part", "x64", Depth.LOWER)
    assert cell.id == "hostcb/id_tap/jit/tpu-4dev+part+x64@lower"


def test_worker_environment() -> None:
    inherited = {"HOME": "/h", "XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=3"}
    environment = Topology("cpu", 8).environment(inherited)
    devices = "--a=1 --xla_force_host_platform_device_count=8"
    assert environment["XLA_FLAGS"] == " ".join((devices, *known(QUICK_COMPILATION)))
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["HOME"] == "/h"
    whole = (Topology("cpu", 8, "optimised").environment(inherited), Topology("cpu", 8).environment(inherited, ()))
    assert [one["XLA_FLAGS"] for one in whole] == [devices] * 2, "XLA compiles in its own way"
    asked = Topology("cpu", 8).environment({"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=true"})
    assert "--xla_cpu_use_fusion_emitters=false" not in asked["XLA_FLAGS"], "the user has the last word"
    assert Topology("cpu", 2, "sync").environment({})["JAX_CPU_ENABLE_ASYNC_DISPATCH"] == "0"
    assert Topology("tpu", 4).environment({})["JAX_PLATFORMS"] == "tpu,cpu"
    assert "XLA_FLAGS" not in Topology("tpu", 4).environment({})


@pytest.mark.parametrize(
    ("topology", "platforms", "version"),
    [
        (Topology("cuda", 1), ["cpu"], ""),
        (Topology("cuda", 1), ["gpu"], "rocm 6"),
        (Topology("rocm", 1), ["gpu"], "PJRT CUDA 13"),
        (Topology("tpu", 1), ["gpu"], "cuda 13"),
        (Topology("tpu", 1), [], ""),
        (Topology("cpu", 8), ["cpu"] * 7, ""),
    ],
)
def test_other_devices_than_asked_for(topology: Topology, platforms: list[str], version: str) -> None:
    with pytest.raises(WrongPlatformError, match=f"asked for .*{topology.platform}"):
        check_devices(topology, platforms, version)


def test_right_devices() -> None:
    check_devices(Topology("cpu", 8), ["cpu"] * 8, "")
    check_devices(Topology("cuda", 1), ["gpu", "gpu"], "PJRT C API\ncuda 13010")
    check_devices(Topology("rocm", 2), ["gpu", "gpu"], "rocm 70000")
