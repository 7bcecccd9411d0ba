"""Platforms beside the CPU, without their hardware: a plugin whose devices are a CPU's, and call themselves so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.contract("C3")

ROOT = Path(__file__).parents[2]

PLUGIN = """\
from jax._src import xla_bridge

def initialize():
    xla_bridge.register_backend_factory("toy", xla_bridge.make_cpu_client, priority=-10)
"""
CALLBACKS = ("pure_callback", "io_callback_ordered")
CASE = "pure_callback/case.os_exit.pmap"


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, str]:
    """An environment in which JAX finds the plugin, on a machine where it has two devices."""
    plugin = tmp_path / "jax_plugins" / "toy"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(PLUGIN)
    return os.environ | {
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }


def conformance(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conformance", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_a_plugin_is_asked_for_by_its_name(tmp_path: Path, toy: dict[str, str]) -> None:
    """JAX's own callbacks need a device of the CPU beside it; how its devices call themselves is its affair."""
    chosen = " or ".join((*(f"{name}/jit/" for name in CALLBACKS), f"({CASE} and 2dev)"))
    results = tmp_path / "results"
    arguments = ["--platform", "toy", "--implementation", "jax", "-k", chosen, "--results", str(results)]
    # What an inherited setting would make of programs that name no device is none of theirs.
    ended = conformance(toy | {"JAX_PLATFORM_NAME": "cpu"}, "run", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((results / "conformance-toy.json").read_text())
    ids = {cell["id"]: cell["verdict"] for cell in report["cells"]}
    programs = [f"jax/{name}/jit/toy-{count}dev" for name in CALLBACKS for count in (1, 2)]
    assert ids == dict.fromkeys([*programs, f"jax/{CASE}/toy-2dev"], "pass")
    assert report["run_info"]["toy-2dev"]["device_count"] == 2


def test_a_cell_of_a_plugin_alone(tmp_path: Path, toy: dict[str, str]) -> None:
    """The program brings the platform; where that is absent, it does not fall back to the CPU beside it."""
    # Not beside the plugin, where it would find that.
    file = tmp_path / "alone" / "cell.py"
    file.parent.mkdir()
    cell = "jax/pure_callback/jit/toy-1dev"
    assert conformance(toy, "repro", cell, "--program", str(file)).returncode == 0
    command = [sys.executable, str(file)]
    ran = subprocess.run(command, env=toy, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"{cell}: pass" in ran.stdout
    without = toy | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=without, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "WrongPlatformError: asked for toy devices, JAX found none" in ran.stderr
