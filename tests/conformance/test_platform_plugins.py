"""Platforms beside the CPU, without their hardware: a plugin whose devices are a CPU's, and call themselves so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from conformance.spec.topology import Topology, WrongPlatformError, check_devices
from conformance.worker.devices import devices_of

pytestmark = pytest.mark.contract("C3")

ROOT = Path(__file__).parents[2]

PLUGIN = """\
from jax._src import xla_bridge

def initialize():
    xla_bridge.register_backend_factory("toy", xla_bridge.make_cpu_client, priority=-10)
"""
CALLBACKS = ("pure_callback", "io_callback_ordered", "debug_callback")
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


# Without processes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu", "toy"])
def test_workers_have_a_cpu_beside_the_platform(platform: str) -> None:
    inherited = {"JAX_PLATFORMS": "cpu", "JAX_PLATFORM_NAME": "cpu", "JAX_DEFAULT_DEVICE": "cpu", "HOME": "/h"}
    assert Topology(platform, 1).environment(inherited) == {"JAX_PLATFORMS": f"{platform},cpu", "HOME": "/h"}
    # Zero devices stand for all there are.
    assert Topology(platform, 0).environment({}) == {"JAX_PLATFORMS": f"{platform},cpu"}
    assert Topology("cpu", 1).environment(inherited)["JAX_PLATFORMS"] == "cpu"


def test_a_description_of_the_cpus_devices_is_tried_without_the_platform(tmp_path: Path, toy: dict[str, str]) -> None:
    """Its worker names the CPU once: with two clients of one platform the default device is another one."""
    file = tmp_path / "acme.toml"
    file.write_text('[platform]\nname = "acme"\nregistered = "cpu"\nxla_flags = ["--xla_cpu_enable_fast_math=false"]\n')
    cells = [f"jax/pure_callback/jit/acme-{count}dev" for count in (1, 2)]
    results = tmp_path / "results"
    arguments = ["--platform", str(file), "--results", str(results)]
    ended = conformance(toy, "run", *arguments, *(f"--cell={cell}" for cell in cells))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((results / "conformance-acme.json").read_text())
    assert {cell["id"]: cell["verdict"] for cell in report["cells"]} == dict.fromkeys(cells, "pass")
    every = conformance(
        toy, "run", *arguments, "--devices", "1,2", "--implementation", "jax", "-k", "jax/pure_callback/jit/"
    )
    assert every.returncode == 0, every.stdout + every.stderr


class Device:
    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.client = self


def found(monkeypatch: pytest.MonkeyPatch, of: dict[str | None, list[Any]]) -> None:
    """What JAX has by the name of a platform, and by default."""

    def devices(name: str | None = None) -> list[Any]:
        if name not in of:
            raise RuntimeError(f"Unknown backend {name}")
        return of[name]

    monkeypatch.setattr(jax, "devices", devices)


@pytest.mark.parametrize("calls_itself", ["cpu", "toy", "another"])
def test_devices_are_those_of_the_platform(calls_itself: str, monkeypatch: pytest.MonkeyPatch) -> None:
    toys = [Device(calls_itself) for _ in range(4)]
    found(monkeypatch, {None: toys, "toy": toys, "cpu": [Device("cpu")]})
    assert devices_of(Topology("toy", 3)) == toys[:3]
    assert devices_of(Topology("toy", 0)) == toys
    with pytest.raises(WrongPlatformError, match="asked for 5 toy devices, JAX found 4"):
        devices_of(Topology("toy", 5))


@pytest.mark.parametrize("platform", ["toy", "cuda"])
def test_the_cpu_beside_it_never_passes_for_a_platform(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = [Device("cpu")]
    # JAX leaves a CUDA that sees no GPU out, and says nothing.
    found(monkeypatch, {None: cpu, "cpu": cpu})
    with pytest.raises(WrongPlatformError, match=f"asked for {platform} devices, JAX found none"):
        devices_of(Topology(platform, 1))
    # It is there, and programs that name no device run elsewhere.
    found(monkeypatch, {None: cpu, "cpu": cpu, platform: [Device(platform)]})
    with pytest.raises(WrongPlatformError, match="by default JAX uses"):
        devices_of(Topology(platform, 1))


def test_platforms_that_the_suite_knows_call_themselves_as_ever() -> None:
    check_devices(Topology("toy", 2), ["cpu", "cpu"], "")
    for platform in ("tpu", "cuda", "rocm"):
        with pytest.raises(WrongPlatformError, match=f"asked for {platform} devices, JAX found 2 cpu"):
            check_devices(Topology(platform, 2), ["cpu", "cpu"], "")
    with pytest.raises(WrongPlatformError, match="JAX found none"):
        check_devices(Topology("toy", 0), [], "")
