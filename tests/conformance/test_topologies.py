"""Topologies: their names, the environment of their workers, and that only the right devices are taken for them."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from conformance.planning.cells import parse_cell
from conformance.spec.depths import Depth
from conformance.spec.topology import Topology, WrongPlatformError, check_devices, parse_topology
from conformance.spec.xla_flags import QUICK_COMPILATION, known
from conformance.worker.devices import devices_of

pytestmark = pytest.mark.contract("C3")


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
def test_names(name: str, topology: Topology) -> None:
    assert topology.name == name
    assert parse_topology(name) == (topology, [])
    assert parse_cell(f"hostcb/id_tap/jit/{name}").id == f"hostcb/id_tap/jit/{name}"


def test_the_environment_of_a_worker() -> None:
    inherited = {"HOME": "/h", "XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=3"}
    environment = Topology("cpu", 8).environment(inherited)
    devices = "--a=1 --xla_force_host_platform_device_count=8"
    assert environment["XLA_FLAGS"] == " ".join((devices, *known(QUICK_COMPILATION)))
    assert (environment["JAX_PLATFORMS"], environment["HOME"]) == ("cpu", "/h")
    whole = (Topology("cpu", 8, "optimised").environment(inherited), Topology("cpu", 8).environment(inherited, ()))
    assert [one["XLA_FLAGS"] for one in whole] == [devices] * 2, "XLA compiles in its own way"
    asked = Topology("cpu", 8).environment({"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=true"})
    assert "--xla_cpu_use_fusion_emitters=false" not in asked["XLA_FLAGS"], "the user has the last word"
    assert Topology("cpu", 2, "sync").environment({})["JAX_CPU_ENABLE_ASYNC_DISPATCH"] == "0"


@pytest.mark.parametrize("platform", ["cuda", "tpu", "toy"])
@pytest.mark.parametrize("devices", [1, 0])
def test_workers_have_a_cpu_beside_the_platform(platform: str, devices: int) -> None:
    """Zero devices stand for all there are."""
    inherited = {"JAX_PLATFORMS": "cpu", "JAX_PLATFORM_NAME": "cpu", "JAX_DEFAULT_DEVICE": "cpu", "HOME": "/h"}
    wanted = {"JAX_PLATFORMS": f"{platform},cpu", "HOME": "/h"}
    assert Topology(platform, devices).environment(inherited) == wanted


@pytest.mark.parametrize(
    ("topology", "platforms", "version", "right"),
    [
        (Topology("cpu", 8), ["cpu"] * 8, "", True),
        (Topology("cuda", 1), ["gpu", "gpu"], "PJRT C API\ncuda 13010", True),
        (Topology("rocm", 2), ["gpu", "gpu"], "rocm 70000", True),
        # A platform that the suite does not know may call its devices anything.
        (Topology("toy", 2), ["cpu", "cpu"], "", True),
        (Topology("cuda", 1), ["cpu"], "", False),
        (Topology("cuda", 1), ["gpu"], "rocm 6", False),
        (Topology("rocm", 1), ["gpu"], "PJRT CUDA 13", False),
        (Topology("tpu", 1), ["gpu"], "cuda 13", False),
        (Topology("tpu", 1), [], "", False),
        (Topology("cpu", 8), ["cpu"] * 7, "", False),
        (Topology("toy", 0), [], "", False),
    ],
)
def test_other_devices_are_refused(topology: Topology, platforms: list[str], version: str, right: bool) -> None:
    if right:
        check_devices(topology, platforms, version)
        return
    with pytest.raises(WrongPlatformError, match=f"asked for .*{topology.platform}"):
        check_devices(topology, platforms, version)


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
