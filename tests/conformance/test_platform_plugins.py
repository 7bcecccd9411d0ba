"""Platforms beside the CPU, without their hardware: a plugin whose devices are a CPU's, and call themselves so."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite_runs import ROOT, python, report_in, run, verdicts

pytestmark = pytest.mark.contract("C3")

PLUGIN = """\
from jax._src import xla_bridge

def initialize():
    xla_bridge.register_backend_factory("toy", xla_bridge.make_cpu_client, priority=-10)
"""
CASE = "pure_callback/case.os_exit.pmap"


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, str]:
    """An environment in which JAX finds the plugin, on a machine where it has two devices."""
    plugin = tmp_path / "jax_plugins" / "toy"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(PLUGIN)
    own = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    return own | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}


def test_a_plugin_is_asked_for_by_its_name(tmp_path: Path, toy: dict[str, str]) -> None:
    """JAX's own callbacks need a device of the CPU beside it; how its devices call themselves is its affair."""
    chosen = f"pure_callback/jit/ or io_callback_ordered/jit/ or ({CASE} and 2dev)"
    arguments = ["--platform", "toy", "--implementation", "jax", "-k", chosen]
    # What an inherited setting would make of programs that name no device is none of theirs.
    ended = run(tmp_path, *arguments, **toy, JAX_PLATFORM_NAME="cpu")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = report_in(tmp_path / "results", "toy")
    programs = [f"jax/{name}/jit/toy-{n}dev" for name in ("pure_callback", "io_callback_ordered") for n in (1, 2)]
    assert verdicts(report) == dict.fromkeys([*programs, f"jax/{CASE}/toy-2dev"], "pass")
    assert report["run_info"]["toy-2dev"]["device_count"] == 2


def test_a_cell_of_a_plugin_alone(tmp_path: Path, toy: dict[str, str]) -> None:
    """The program brings the platform; where that is absent, it does not fall back to the CPU beside it."""
    # Not beside the plugin, where it would find that.
    file = tmp_path / "alone" / "cell.py"
    file.parent.mkdir()
    cell = "jax/pure_callback/jit/toy-1dev"
    assert python(tmp_path, "-m", "conformance", "repro", cell, "--program", str(file), **toy).returncode == 0
    ran = python(file.parent, str(file), **toy)
    assert ran.returncode == 0, ran.stderr
    assert f"{cell}: pass" in ran.stdout
    ran = python(file.parent, str(file), **toy | {"PYTHONPATH": str(ROOT)})
    assert ran.returncode == 1
    assert "WrongPlatformError: asked for toy devices, JAX found none" in ran.stderr
