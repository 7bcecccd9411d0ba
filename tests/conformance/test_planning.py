"""The cells of a plan: their ids, what is covered and left out, how some are selected, depths, and topologies."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from suite_runs import Capture, Patch

from conformance.cli.commands import main
from conformance.engine import depths
from conformance.engine.depths import Chosen, choose
from conformance.engine.preparation import ConflictingOptionsError, _depth_of
from conformance.expectations.entries import Expectations
from conformance.implementations import callbacks_drawn_for, why_not_offered
from conformance.implementations.jax import Jax
from conformance.model.programs import all_programs
from conformance.model.transforms import TRANSFORMS
from conformance.oracle.verdicts import Outcome, Verdict
from conformance.planning import selection
from conformance.planning.cells import CaseCell, Plan, ProgramCell, UnknownCellError, make_whole_plan, parse_cell
from conformance.planning.coverage import coverage_of
from conformance.planning.depths import at_depth
from conformance.planning.keywords import any_of, matcher
from conformance.planning.selection import CPU_DEVICE_COUNTS, Choice, covering_of, pairs_in, plan_of, smoke
from conformance.reports.markdown import markdown
from conformance.reports.report import Report
from conformance.reports.results import load_results
from conformance.spec.callbacks import HOST_CALLBACKS
from conformance.spec.depths import Depth
from conformance.spec.errors import CommandError
from conformance.spec.external_callbacks import EXTERNAL_CALLBACKS
from conformance.spec.platform_targets import TARGETS
from conformance.spec.topology import Topology, WrongPlatformError, check_devices, parse_topology
from conformance.spec.xla_flags import QUICK_COMPILATION, known
from conformance.worker import devices as worker_devices

pytestmark = pytest.mark.contract("C1")

IMPLEMENTATIONS = ("hostcb", "jax")


def programs_of(cells: Any, implementation: str | None = None) -> list[ProgramCell]:
    return [c for c in cells if isinstance(c, ProgramCell) and implementation in (None, c.implementation)]


def test_ids_are_unique_and_lead_back_to_their_cells(cpu_plan: Plan) -> None:
    assert len({cell.id for cell in cpu_plan.cells}) == len(cpu_plan.cells)
    assert all(cell.promises for cell in cpu_plan.cells)
    # All of them take a minute.
    for cell in cpu_plan.cells[::97]:
        assert parse_cell(cell.id) == cell
    for cell_id, message in {
        "hostcb/id_tap/vmap": "no cell id",
        "hostcb/id_tap/vmapp/cpu-1dev": r"unknown transform 'vmapp' in .*; did you mean vmap\?",
        "hostcb/id_tap/case.tap_rises.jit/cpu-8dev": r"no case 'case.* of id_tap.*; did you mean case.tap_raises.jit\?",
        "hostcb/debug_callback/case.tap_raises.jit/cpu-8dev": "known; it is one of id_print, id_tap",
        "jx/io_callback/jit/cpu-1dev": r"no implementation 'jx'.*; did you mean jax\?",
        "hostcb/id_tap/grad.grad.remat/cpu-1dev": "means nothing: nothing promises",
        "hostcb/id_tap/jit/cpu-2dev+grid": "grid needs 4 devices",
        "hostcb/id_tap/jit+int64-scalar-one/cpu-1dev": "need x64",
    }.items():
        with pytest.raises(CommandError, match=message):
            parse_cell(cell_id)


@pytest.mark.contract("C2")
def test_every_callback_meets_every_transform_or_there_is_a_reason() -> None:
    """Hostcb's others are of callbacks that JAX lacks; JAX alone has the runtime's targets."""
    undrawn = make_whole_plan(IMPLEMENTATIONS, [Topology("cpu", 1), Topology("cpu", 8)]).on_this_release()
    reasons = {cell.id: cell.reason for cell in undrawn.ineligible}
    assert all(reasons.values())
    ids = {cell.id for cell in undrawn.cells} | reasons.keys()
    for callback, program, count in itertools.product(HOST_CALLBACKS, all_programs(), (1, 8)):
        assert f"hostcb/{callback.name}/{program.name}/cpu-{count}dev" in ids
    for cell_id, words in {
        "hostcb/id_tap/grad.while_body/cpu-1dev": "reverse-mode",
        "hostcb/call/case.raises.jit/cpu-1dev": "largest topology",
        "jax/io_callback/grad.scan/cpu-1dev": "cpu-8dev alone",
        "jax/io_and_debug_ordered/vmap/cpu-8dev": "could come in another order",
    }.items():
        assert words in reasons[cell_id]
    of: Any = {
        name: {c.id.split("/", 1)[1]: c for c in undrawn.cells if c.implementation == name} for name in IMPLEMENTATIONS
    }
    of_jax_alone = {of["jax"][one].callback_name for one in of["jax"].keys() - of["hostcb"]}
    assert of_jax_alone == {"ffi_target", "buffer_target"}
    of_jax = {callback.name for callback in EXTERNAL_CALLBACKS}
    for cell in (of["hostcb"][one] for one in of["hostcb"].keys() - of["jax"]):
        assert cell.callback_name not in of_jax or (isinstance(cell, CaseCell) and cell.case.functions), cell.id


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_is_covered(cpu_plan: Plan, implementation: str) -> None:
    """Every pair of values of two axes and every composition of two, or the reason why not."""
    coverage = coverage_of(cpu_plan, implementation, "cpu", CPU_DEVICE_COUNTS, Choice())
    programs = programs_of(cpu_plan.cells, implementation)
    covered, axes = {pair for cell in programs for pair in pairs_in(cell)}, list(coverage.values)
    for pairs in coverage.pairs:
        a, b = (axes.index(axis) for axis in pairs.axes)
        seen = {(left, right) for one, left, other, right in covered if (one, other) == (a, b)}
        values = set(itertools.product(*(coverage.values[axis] for axis in pairs.axes)))
        assert not pairs.missing, pairs.axes
        assert pairs.covered == pairs.possible == len(seen & values)
        assert pairs.covered + len(pairs.excluded) == len(values)
        assert all(pairs.excluded.values()) and not seen & pairs.excluded.keys()
    names = [name for name in TRANSFORMS if name != "eager"]
    of_two = {pair for pair in itertools.product(names, repeat=2) if selection.why_not(pair) is None}
    assert of_two <= {cell.program.names for cell in programs_of(cpu_plan.cells)}
    assert all(length.covered == length.possible or length.length > 2 for length in coverage.compositions)
    # A smoke run is small, and has each callback and each transform.
    chosen = smoke(cpu_plan).cells
    assert {*chosen} <= {*cpu_plan.cells} and len(chosen) < 200
    own = programs_of(chosen, implementation)
    assert {cell.callback for cell in own} == {*callbacks_drawn_for(implementation)}
    assert {name for cell in own for name in cell.program.names} == {*TRANSFORMS}


# A release that lacks something has the plan of the others, and leaves out with a reason.

LACKED, PRESENT = "jax/buffer_callback/jit/cpu-1dev", "jax/pure_callback/jit/cpu-1dev"
NO_BUFFERS = "jax has no buffer_callback"


def test_a_plan_is_the_same_on_every_release(
    request: pytest.FixtureRequest, monkeypatch: Patch, tmp_path: Path, capsys: Capture
) -> None:
    """The rows are drawn again for a release without a callback."""
    new = plan_of(["jax"], "cpu", (2,))
    assert not new.lacking
    monkeypatch.setattr(Jax, "lacks", lambda self, one: "buffer_callback" if "buffer" in one.function else None)
    for drawn in (why_not_offered, covering_of):
        drawn.cache_clear()
        request.addfinalizer(drawn.cache_clear)
    old = plan_of(["jax"], "cpu", (2,))
    lacked = {cell.id for cell in new.cells if cell.callback_name.startswith("buffer_callback")}
    assert [cell.id for cell in old.cells] == [cell.id for cell in new.cells if cell.id not in lacked]
    assert {cell.id for cell in old.lacking} == lacked
    assert {cell.reason for cell in old.ineligible if cell.id in lacked} == {NO_BUFFERS}
    with pytest.raises(UnknownCellError, match="means nothing: jax has no buffer_callback"):
        parse_cell(LACKED)
    # A run of a file says what it leaves out.
    path, results = tmp_path / "plan.txt", tmp_path / "results"
    path.write_text(f"# A plan.\n\n{PRESENT}  # this one\n{LACKED}\n{PRESENT}\n")
    run = ["run", "-n", "1", "--cell", f"@{path}", "--results", str(results), "--expectations", os.devnull]
    assert main(run) == 0
    assert f"LEFT OUT: 1 cell: {NO_BUFFERS}" in capsys.readouterr().out
    written = json.loads((results / "conformance-cpu.json").read_text())
    assert [cell["id"] for cell in written["cells"]] == [PRESENT]
    assert written["ineligible"] == [{"id": LACKED, "reason": NO_BUFFERS}]


# Expressions of `-k`.

CELL = "hostcb/id_tap/vmap.scan+int8-matrix-dict/cpu-8dev+sync"
CHOOSING = ("ID_TAP", "id_tap/vmap", "hostcb/*/vmap*", "call or id_tap and scan", "id_tap or call and grad")
CHOOSING += ("not(call)and(id_tap)", "scan+int8-matrix-dict and 8dev+sync")
NOT_CHOOSING = ("id_tap/*", "not not call", "(id_tap or call) and grad", "not call and grad")
NONSENSE = ("", "id_tap and", "and id_tap", "id_tap vmap", "(id_tap", "id_tap)", "a & b")


def test_expressions_mean_what_they_mean_to_pytest() -> None:
    assert [one for one in (*CHOOSING, *NOT_CHOOSING) if matcher(one)(CELL)] == [*CHOOSING]
    names = [CELL, "call", "pmap", "vmap"]
    assert any_of(["call", "vmap"], names)(CELL) and not any_of(["call", "pmap"], names)(CELL)
    for expression in NONSENSE:
        with pytest.raises(CommandError):
            matcher(expression)


# Depths: how one is chosen, its cells, its files and exit codes, and what a compiler must refuse.

RUNNING, GOOD = (parse_cell(f"hostcb/id_tap/jit/tpu-1dev{depth}") for depth in ("", "@lower"))


@pytest.mark.contract("C30")
def test_exit_codes_files_and_ids_say_that_nothing_ran(tmp_path: Path) -> None:
    for depth, asked, verdict, code in (
        *((Depth.RUN, False, Verdict.PASS, 0), (Depth.COMPILE, False, Verdict.PASS, 3)),
        *((Depth.LOWER, True, Verdict.PASS, 0), (Depth.LOWER, False, Verdict.FAIL, 1)),
        (Depth.LOWER, False, Verdict.PASS, 4),
    ):
        report = Report("tpu", Expectations(), depth=depth, depth_asked=asked)
        report.add(RUNNING if depth is Depth.RUN else GOOD, Outcome(verdict, shown="lowered"))
        assert report.exit_code == code
    report.write(tmp_path / "conformance-tpu@lower.json")
    assert "at depth lower: nothing ran, 1 lowered" in markdown(load_results(tmp_path))
    assert _depth_of([GOOD], "auto") is _depth_of([RUNNING], "lower") is Depth.LOWER
    assert _depth_of([RUNNING], "auto") is Depth.RUN
    for name, cells in (("run", [GOOD]), ("auto", [GOOD, RUNNING]), ("compile", [GOOD])):
        with pytest.raises(ConflictingOptionsError, match="one run has one depth"):
            _depth_of(cells, name)


@pytest.mark.contract("C30")
def test_a_run_goes_as_deep_as_the_machine_allows(monkeypatch: Patch) -> None:
    """A depth that is asked for is not replaced by another."""
    there: dict[Depth, dict[str, Any]] = {}

    def probe(topology: Topology) -> dict[str, Any]:
        if topology.depth not in there:
            raise WrongPlatformError(f"nothing to {topology.depth.value} with")
        return there[topology.depth]

    def chosen(asked: str) -> tuple[Depth, bool]:
        found = choose("tpu", asked)
        return found.depth, found.asked

    monkeypatch.setattr(depths, "_probe", probe)
    assert choose("cpu", "auto") == Chosen(Depth.RUN)
    assert (chosen("lower"), chosen("auto")) == ((Depth.LOWER, True), (Depth.LOWER, False))
    for depth in ("run", "compile"):
        with pytest.raises(WrongPlatformError, match=f"nothing to {depth} with"):
            choose("tpu", depth)
    with pytest.raises(WrongPlatformError, match="acme has no checks of lowered programs"):
        choose("acme", "lower")
    there[Depth.COMPILE] = {"compiler": "libtpu 1.2"}
    assert chosen("auto") == (Depth.COMPILE, False)
    there[Depth.RUN] = {"device_count": 4}
    assert chosen("auto") == (Depth.RUN, True)


@pytest.mark.contract("C30")
def test_cells_that_show_nothing_are_left_out_with_the_reason() -> None:
    running = selection.undrawn_plan_of(["hostcb"], "cuda", (1, 4))
    plan = at_depth(running, Depth.LOWER)
    assert all(cell.id.endswith("@lower") for cell in (*plan.cells, *plan.ineligible))
    reasons = {cell.id: cell.reason for cell in plan.ineligible}
    assert "nothing runs at depth lower" in reasons["hostcb/id_tap/case.tap_raises.jit/cuda-4dev@lower"]
    assert "no program" in reasons["hostcb/id_tap/eager/cuda-4dev@lower"]
    assert "cell on one device" in reasons["hostcb/id_tap/jit/cuda-4dev@lower"]
    alone = at_depth(selection.undrawn_plan_of(["hostcb"], "cuda", (1,)), Depth.LOWER)
    assert "hostcb/id_tap/pjit.scan/cuda-1dev@lower" in {cell.id for cell in alone.cells}
    # Pairs of transforms are planned on the larger topology alone, and stay there.
    left = [cell.id for cell in plan.cells if cell.id.startswith(("hostcb/id_tap/jit/", "hostcb/id_tap/jit.scan/"))]
    assert sorted(left) == ["hostcb/id_tap/jit.scan/cuda-4dev@lower", "hostcb/id_tap/jit/cuda-1dev@lower"]


@pytest.mark.contract("C30")
def test_a_compiler_must_refuse_what_is_wrong(monkeypatch: Patch) -> None:
    """One that takes anything for some numbers of devices checks nothing; and other errors are no refusals."""
    for accepts, platform, count, words in (
        ((1, 4), "tpu", 1, "accepted an unknown custom-call target on 1 devices: it checks nothing"),
        ((4,), "tpu", 4, "accepted an operation with side effects and without a sharding"),
        ((4,), "cuda", 4, None),
        (None, "cuda", 1, "for another reason: RuntimeError: out of memory"),
    ):

        def compiled(devices: Any, side_effect: bool, accepts: Any = accepts) -> None:
            if accepts is None or len(devices) not in accepts:
                raise RuntimeError("out of memory" if accepts is None else "no emitter for conformance_no_such_target")

        monkeypatch.setattr(worker_devices, "_compile", compiled)
        with pytest.raises(WrongPlatformError, match=words) if words else contextlib.nullcontext():
            worker_devices.check_controls(jax.devices()[:count], TARGETS[platform])


# Topologies: the environment of their workers, and that only the right devices are taken for them.


@pytest.mark.contract("C3")
def test_names_and_the_environment_of_a_worker() -> None:
    for name, topology in {
        "cpu-8dev": Topology("cpu", 8),
        "cpu-2x4": Topology("cpu", 8, processes=2),
        "my-npu-2x1+sync@lower": Topology("my-npu", 2, "sync", 2, Depth.LOWER),
    }.items():
        assert (topology.name, parse_topology(name)) == (name, (topology, []))
        assert parse_cell(f"hostcb/id_tap/jit/{name}").id == f"hostcb/id_tap/jit/{name}"
    count = "--xla_force_host_platform_device_count"
    inherited = {"HOME": "/h", "XLA_FLAGS": f"--a=1 {count}=3"}
    environment = Topology("cpu", 8).environment(inherited)
    assert environment["XLA_FLAGS"] == " ".join(("--a=1", f"{count}=8", *known(QUICK_COMPILATION)))
    assert (environment["JAX_PLATFORMS"], environment["HOME"]) == ("cpu", "/h")
    asked = Topology("cpu", 8).environment({"XLA_FLAGS": "--xla_backend_optimization_level=3"})
    assert asked["XLA_FLAGS"].count("optimization_level") == 1, "the user has the last word"
    assert Topology("cpu", 2, "sync").environment({})["JAX_CPU_ENABLE_ASYNC_DISPATCH"] == "0"
    # Workers have a CPU beside the platform. Zero devices stand for all there are.
    inherited = {"JAX_PLATFORMS": "cpu", "JAX_PLATFORM_NAME": "cpu", "JAX_DEFAULT_DEVICE": "cpu", "HOME": "/h"}
    for platform, devices in (("cuda", 1), ("toy", 0)):
        wanted = {"JAX_PLATFORMS": f"{platform},cpu", "HOME": "/h"}
        assert Topology(platform, devices).environment(inherited) == wanted


@pytest.mark.contract("C3")
def test_other_devices_are_refused() -> None:
    # A platform that the suite does not know may call its devices anything.
    for topology, platforms, version in (
        (Topology("cpu", 8), ["cpu"] * 8, ""),
        (Topology("cuda", 1), ["gpu", "gpu"], "PJRT C API\ncuda 13010"),
        (Topology("toy", 2), ["cpu", "cpu"], ""),
    ):
        check_devices(topology, platforms, version)
    for topology, platforms, version, wanted in (
        (Topology("cuda", 1), ["cpu"], "", "`devices` in the suite wants 'gpu'"),
        (Topology("rocm", 1), ["gpu"], "PJRT CUDA 13", "`version` in the suite wants 'rocm'"),
        (Topology("tpu", 1), [], "", ""),
        (Topology("cpu", 8), ["cpu"] * 7, "", ""),
        (Topology("toy", 0), [], "", ""),
    ):
        with pytest.raises(WrongPlatformError, match=f"asked for .*{topology.platform}.*{wanted}"):
            check_devices(topology, platforms, version)


@pytest.mark.contract("C3")
def test_devices_are_those_of_the_platform(monkeypatch: Patch) -> None:
    """The CPU beside it never passes for it, whatever its devices call themselves."""
    of: dict[str | None, list[Any]] = {}

    def devices(name: str | None = None) -> list[Any]:
        if name not in of:
            raise RuntimeError(f"Unknown backend {name}")
        return of[name]

    monkeypatch.setattr(jax, "devices", devices)
    cpu: list[Any] = [SimpleNamespace(platform="cpu", client=None)]
    for name in ("cpu", "toy", "another"):
        toys: list[Any] = [SimpleNamespace(platform=name, client=None) for _ in range(4)]
        of.update({None: toys, "toy": toys, "cpu": cpu})
        assert worker_devices.devices_of(Topology("toy", 3)) == toys[:3]
        assert worker_devices.devices_of(Topology("toy", 0)) == toys
        with pytest.raises(WrongPlatformError, match="asked for 5 toy devices, JAX found 4"):
            worker_devices.devices_of(Topology("toy", 5))
    of = {None: cpu, "cpu": cpu}
    for name in ("toy", "cuda"):
        # JAX leaves a CUDA that sees no GPU out, and says nothing.
        with pytest.raises(WrongPlatformError, match=f"asked for {name} devices, JAX found none"):
            worker_devices.devices_of(Topology(name, 1))
        of[name] = [SimpleNamespace(platform=name, client=None)]
        # It is there, and programs that name no device run elsewhere.
        with pytest.raises(WrongPlatformError, match="by default JAX uses"):
            worker_devices.devices_of(Topology(name, 1))
