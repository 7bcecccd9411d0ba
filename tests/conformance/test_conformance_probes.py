"""Cells that run in the environment of another release. This process's own interpreter stands for that environment."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.engine import cell_runner
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import UnknownCellError
from conformance.releases.environments import Environment
from conformance.releases.probes import Probe, probe
from conformance.releases.release import Release, ReleaseError
from conformance.spec.topology import Topology, WrongPlatformError
from conformance.worker.processes import OtherPython, WorkerProcess, worker_environment

pytestmark = pytest.mark.contract("C8")

HERE = Path(__file__).parent
INSTALLED = Release(importlib.metadata.version("jax"), importlib.metadata.version("jaxlib"))
OLD = Release("0.6.2", "0.6.2")


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def probed(folder: Path, cells: Sequence[str], release: Release = INSTALLED, repeat: int = 1) -> list[Probe]:
    environment = Environment(release, Path(sys.executable))
    return list(probe(environment, cells, repeat=repeat, deadline=20.0, log=folder / "log"))


def fake(name: str, callback: str = "call") -> str:
    return f"conformance_fakes:{name}/{callback}/eager/cpu-1dev"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Each worker that is started."""
    started: list[object] = []

    class Counted(WorkerProcess):
        def __init__(self, *arguments: object, **options: object) -> None:
            started.append(arguments[0])
            super().__init__(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cell_runner, "WorkerProcess", Counted)
    return started


def test_a_platform_that_is_not_there_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next cells may have another platform."""

    def refuse(*_: object) -> None:
        raise WrongPlatformError("asked for gpu devices, JAX found cpu")

    monkeypatch.setattr(cell_runner.CellRunner, "run", refuse)
    found = probed(tmp_path, [fake("DIES_IN_CALL"), fake("DIES_IN_CALL", "id_tap")])
    assert [one.outcome.verdict for one in found] == [Verdict.UNSUPPORTED] * 2
    assert found[0].outcome.reason == "asked for gpu devices, JAX found cpu"


def test_a_crash_costs_the_cell_in_flight(tmp_path: Path, starts: list[object]) -> None:
    cells = [fake("DIES_IN_CALL", "id_tap"), fake("DIES_IN_CALL"), fake("DIES_IN_CALL", "id_tap")]
    found = probed(tmp_path, cells)
    assert [(one.cell, one.outcome.label) for one in found] == [
        (cells[0], "pass"),
        (cells[1], "crash(SIGABRT)"),
        (cells[0], "pass"),
    ]
    assert len(starts) == 2


def test_many_runs_in_one_worker(tmp_path: Path, starts: list[object]) -> None:
    found = probed(tmp_path, [fake("GOOD"), "jax/pure_callback/jit/cpu-1dev"], repeat=3)
    assert [one.outcome.verdict for one in found] == [Verdict.PASS] * 6
    assert len(starts) == 2


def test_a_failed_run_leaves_nothing_for_the_next(tmp_path: Path, starts: list[object]) -> None:
    """The second cell fails in the process of the first, and passes in a new one."""
    found = probed(tmp_path, [fake("FAILS_IN_COMPANY", "id_tap"), fake("FAILS_IN_COMPANY")], repeat=2)
    assert [one.outcome.label for one in found] == ["pass", "pass", "fail", "pass"]
    assert len(starts) == 2


def test_what_a_release_lacks_is_unsupported(tmp_path: Path, starts: list[object]) -> None:
    """No worker is started for what it could not do in any case."""
    cells = ["hostcb/id_tap/jit/cpu-1dev", "jax/io_callback/fault.raises_before_collective.shard_map/cpu-8dev"]
    found = {one.cell: one.outcome for one in probed(tmp_path, cells, OLD)}
    assert found == {
        cells[0]: Outcome(Verdict.UNSUPPORTED, None, "hostcb needs JAX 0.10.2 or newer", anomaly="not applicable"),
        cells[1]: Outcome(
            *(Verdict.UNSUPPORTED, None),
            "the XLA of jaxlib 0.6.2 has no --xla_cpu_collective_call_warn_stuck_timeout_seconds",
            anomaly="not applicable",
        ),
    }
    assert starts == []


def test_what_the_worker_finds_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell is planned here, and the worker's JAX does not have its callback."""
    # An old release without the option passes it to the callback.
    (tmp_path / "sitecustomize.py").write_text(
        "import jax\nnew = jax.pure_callback\n"
        "def old(callback, result_shape_dtypes, *args, sharding=None, vectorized=None, **kwargs):\n"
        "    return new(callback, result_shape_dtypes, *args, **kwargs)\n"
        "jax.pure_callback = old\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{HERE}")
    missing, there = "jax/pure_callback_expand_dims/vmap/cpu-1dev", "jax/pure_callback/jit/cpu-1dev"
    found = {one.cell: one.outcome for one in probed(tmp_path, [missing, there])}
    assert found[there].verdict is Verdict.PASS
    assert found[missing] == Outcome(
        Verdict.UNSUPPORTED,
        None,
        f"jax has no vmap_method='expand_dims' in {INSTALLED.jax}",
        anomaly="not applicable",
    )


@pytest.mark.parametrize("cell", ["jax/pure_callback/jti/cpu-1dev", "jax/no_callback/jit/cpu-1dev", "jax"])
def test_what_no_release_has_is_an_error(cell: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownCellError):
        probed(tmp_path, [cell], OLD)


def test_an_environment_in_which_no_worker_starts(tmp_path: Path) -> None:
    environment = Environment(OLD, tmp_path / "python")
    (tmp_path / "python").write_text("#!/bin/sh\necho no module named jax >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(ReleaseError, match=r"^JAX 0\.6\.2: a worker for cpu-1dev did not start: no module named jax"):
        list(probe(environment, ["jax/pure_callback/jit/cpu-1dev"], log=tmp_path / "log"))


def test_what_a_worker_of_another_environment_gets() -> None:
    """The flags are those of its own XLA, and its Python finds the suite and nothing of this environment."""
    python = OtherPython(Path("/other/bin/python"), "0.5.0", (Path("/suite"),))
    inherited = {"PYTHONPATH": "/mine::/suite", "VIRTUAL_ENV": "/this", "PYTHONHOME": "/this", "HOME": "/home"}
    assert python.environment(inherited) == {"PYTHONPATH": "/suite:/mine", "HOME": "/home"}
    flags = worker_environment(Topology("cpu", 1), (), {}, jaxlib="0.5.0")["XLA_FLAGS"]
    assert "--xla_cpu_use_fusion_emitters" not in flags
    assert (
        "--xla_cpu_use_fusion_emitters" in worker_environment(Topology("cpu", 1), (), {}, jaxlib="0.6.2")["XLA_FLAGS"]
    )


def test_the_outcome_of_a_hang(tmp_path: Path) -> None:
    environment = Environment(INSTALLED, Path(sys.executable))
    cells = [fake("BLOCKS_IN_CALL"), fake("BLOCKS_IN_CALL", "id_tap")]
    hang, after = probe(environment, cells, deadline=3.0, log=tmp_path / "log")
    assert (hang.outcome.verdict, after.outcome.verdict) == (Verdict.HANG, Verdict.PASS)
    assert hang.outcome.stage is not Stage.EXIT
