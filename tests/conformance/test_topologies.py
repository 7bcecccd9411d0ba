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


def test_names() -> None:
    for name, topology in {
        "cpu-8dev": Topology("cpu", 8),
        "cpu-2x4": Topology("cpu", 8, processes=2),
        "my-npu-2x1+sync@lower": Topology("my-npu", 2, "sync", 2, Depth.LOWER),
    }.items():
        assert topology.name == name
        assert parse_topology(name) == (topology, [])
        assert parse_cell(f"hostcb/id_tap/jit/{name}").id == f"hostcb/id_tap/jit/{name}"


def test_the_environment_of_a_worker() -> None:
    inherited = {"HOME": "/h", "XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=3"}
    environment = Topology("cpu", 8).environment(inherited)
    devices = "--a=1 --xla_force_host_platform_device_count=8"
    assert environment["XLA_FLAGS"] == " ".join((devices, *known(QUICK_COMPILATION)))
    assert (environment["JAX_PLATFORMS"], environment["HOME"]) == ("cpu", "/h")
    assert Topology("cpu", 8, "optimised").environment(inherited)["XLA_FLAGS"] == devices
    asked = Topology("cpu", 8).environment({"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=true"})
    assert "--xla_cpu_use_fusion_emitters=false" not in asked["XLA_FLAGS"], "the user has the last word"
    assert Topology("cpu", 2, "sync").environment({})["JAX_CPU_ENABLE_ASYNC_DISPATCH"] == "0"
    # Workers have a CPU beside the platform. Zero devices stand for all there are.
    inherited = {"JAX_PLATFORMS": "cpu", "JAX_PLATFORM_NAME": "cpu", "JAX_DEFAULT_DEVICE": "cpu", "HOME": "/h"}
    for platform, count in (("cuda", 1), ("toy", 0)):
        wanted = {"JAX_PLATFORMS": f"{platform},cpu", "HOME": "/h"}
        assert Topology(platform, count).environment(inherited) == wanted


@pytest.mark.parametrize(
    ("topology", "platforms", "version", "right"),
    [
        (Topology("cpu", 8), ["cpu"] * 8, "", True),
        (Topology("cuda", 1), ["gpu", "gpu"], "PJRT C API\ncuda 13010", True),
        # A platform that the suite does not know may call its devices anything.
        (Topology("toy", 2), ["cpu", "cpu"], "", True),
        (Topology("cuda", 1), ["cpu"], "", False),
        (Topology("cuda", 1), ["gpu"], "rocm 6", False),
        (Topology("rocm", 1), ["gpu"], "PJRT CUDA 13", False),
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


def test_devices_are_those_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU beside it never passes for it, whatever its devices call themselves."""
    of: dict[str | None, list[Any]] = {}

    def devices(name: str | None = None) -> list[Any]:
        if name not in of:
            raise RuntimeError(f"Unknown backend {name}")
        return of[name]

    monkeypatch.setattr(jax, "devices", devices)
    cpu = [Device("cpu")]
    for name in ("cpu", "toy", "another"):
        toys = [Device(name) for _ in range(4)]
        of.update({None: toys, "toy": toys, "cpu": cpu})
        assert devices_of(Topology("toy", 3)) == toys[:3]
        assert devices_of(Topology("toy", 0)) == toys
        with pytest.raises(WrongPlatformError, match="asked for 5 toy devices, JAX found 4"):
            devices_of(Topology("toy", 5))
    of = {None: cpu, "cpu": cpu}
    for name in ("toy", "cuda"):
        # JAX leaves a CUDA that sees no GPU out, and says nothing.
        with pytest.raises(WrongPlatformError, match=f"asked for {name} devices, JAX found none"):
            devices_of(Topology(name, 1))
        of[name] = [Device(name)]
        # It is there, and programs that name no device run elsewhere.
        with pytest.raises(WrongPlatformError, match="by default JAX uses"):
            devices_of(Topology(name, 1))
