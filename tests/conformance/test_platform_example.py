"""The example of a platform, on a machine that has its plugin and a C compiler: `nox -s vendor` is one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.vendor_packages import installed

from conformance.expectations.entries import load_expectations
from conformance.spec.platforms import platform_in

pytestmark = pytest.mark.contract("C50", "C51")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "platform"


def test_its_description_and_its_known_failures_can_be_read() -> None:
    platform = platform_in(EXAMPLE / "toy_platform" / "toy.toml")
    assert (platform.name, platform.jax_name, platform.devices) == ("toy", "toy", ("toy_npu",))
    assert platform.expectations
    assert load_expectations(platform.expectations).entries


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with the example, installed or not; without its plugin or a compiler, the test is skipped."""
    if importlib.util.find_spec("lammps_jax_pjrt_cpu") is None:
        pytest.skip("the package lammps-jax-pjrt-cpu is not installed; `nox -s vendor` installs it")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler `cc` on the PATH")
    folders = [str(ROOT)]
    if importlib.util.find_spec("toy_platform") is None:
        points = {"jax_plugins": {"toy": "toy_platform"}}
        points["hostcb_conformance.platforms"] = {"toy": "toy_platform.conformance:PLATFORM"}
        folders += [str(EXAMPLE), str(installed(tmp_path, points, name="hostcb-toy-platform"))]
    own = {"PYTHONPATH": os.pathsep.join(folders), "JAX_PLATFORMS": "toy,cpu", "XLA_FLAGS": ""}
    return os.environ | own


def test_a_cause_costs_two_processes_and_not_one_a_cell(environment: dict[str, str], tmp_path: Path) -> None:
    """Without the vendor's emitter: isolated cases, too, are distinguished without a process each."""
    bare = environment | {"TOY_WITHOUT_CALLBACKS": "1"}
    programs = ("jit", "scan", "case.wrong_shape.jit", "case.wrong_dtype.jit", "case.wrong_count.jit")
    cells = [word for name in programs for word in ("--cell", f"jax/io_callback/{name}/toy-1dev")]
    command = [sys.executable, "-m", "conformance", "run", *cells, "--results", str(tmp_path / "results")]
    ended = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "UNSUPPORTED: `EmitPythonCallback` not supported on toy_npu backend: 5 cells" in ended.stdout
    assert "UNEXPECTED" not in ended.stdout
    assert json.loads((tmp_path / "results" / "conformance-toy.json").read_text())["process_starts"] <= 4
