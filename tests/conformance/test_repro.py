"""Programs that run one cell alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from suite_runs import python

from conformance.cli.commands import main
from conformance.cli.repro import program
from conformance.planning.cells import parse_cell

PASSING = "hostcb/id_tap_device/pmap.scan/cpu-2dev"
KNOWN_FAILURE = "jax/io_callback/grad.scan.detached/cpu-2dev"
CASE = "hostcb/call/case.raises.jit/cpu-2dev"


def run_program(file: Path) -> subprocess.CompletedProcess[str]:
    """It brings its own platform and devices, against what is inherited."""
    inherited = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "nonesuch"}
    return python(file.parent, str(file), **inherited)


@pytest.mark.parametrize("cell_id", [PASSING, CASE])
def test_a_passing_cell(tmp_path: Path, cell_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cell.py"
    assert main(["repro", cell_id, "--program", str(file)]) == 0
    assert capsys.readouterr().out == f"python -m conformance run --cell {cell_id}\n"
    result = run_program(file)
    assert result.returncode == 0, result.stderr
    *events, verdict = result.stdout.splitlines()
    assert verdict == f"{cell_id}: pass"
    assert cell_id != PASSING or {json.loads(event)["device"] for event in events} == {0, 1}


def test_known_failure_of_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cell.py"
    assert main(["repro", KNOWN_FAILURE]) == 0
    # What is printed is the program, and its first line the command.
    printed = capsys.readouterr().out
    assert printed.startswith(f"# python -m conformance run --cell {KNOWN_FAILURE}\n")
    file.write_text(printed)
    result = run_program(file)
    assert result.returncode == 1, result.stderr
    assert f"{KNOWN_FAILURE}: fail at callback\nlost: cpu:0 never ran" in result.stdout


def test_environment_of_a_case() -> None:
    """A case may need flags and a deadline of its own."""
    text = program(parse_cell("hostcb/call/case.raises_before_collective.pmap/cpu-8dev"))
    assert (
        '"XLA_FLAGS": "--xla_force_host_platform_device_count=8'
        " --xla_cpu_collective_call_warn_stuck_timeout_seconds=1"
        ' --xla_cpu_collective_call_terminate_timeout_seconds=2"'
    ) in text
    assert text.index("os.environ") < text.index("import jax")
    hanging = program(parse_cell("hostcb/call/case.runs_jax_on_all.pmap/cpu-8dev"))
    assert "dump_traceback_later(10.0, exit=True)" in hanging


def test_other_platforms() -> None:
    text = program(parse_cell("hostcb/id_tap/jit/cuda-1dev"))
    assert '"JAX_PLATFORMS": "cuda,cpu"' in text
    assert "host_platform_device_count" not in text
