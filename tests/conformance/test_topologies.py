"""Topologies: their names, the environment of their workers, and that only the right devices are taken for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from suite_runs import Patch

from conformance.planning.cells import parse_cell
from conformance.spec.depths import Depth
from conformance.spec.topology import Topology, WrongPlatformError, check_devices, parse_topology
from conformance.spec.xla_flags import QUICK_COMPILATION, known
from conformance.worker.devices import devices_of

pytestmark = pytest.mark.contract("C3")


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
        (Topology("cuda", 1), ["gpu"], "rocm 6", "`version` in the suite wants 'cuda'"),
        (Topology("rocm", 1), ["gpu"], "PJRT CUDA 13", "`version` in the suite wants 'rocm'"),
        (Topology("tpu", 1), [], "", "`devices` in the suite wants 'tpu'"),
        (Topology("cpu", 8), ["cpu"] * 7, "", ""),
        (Topology("toy", 0), [], "", ""),
    ):
        with pytest.raises(WrongPlatformError, match=f"asked for .*{topology.platform}.*{wanted}"):
            check_devices(topology, platforms, version)


def device(platform: str) -> Any:
    return SimpleNamespace(platform=platform, client=None)


def test_devices_are_those_of_the_platform(monkeypatch: Patch) -> None:
    """The CPU beside it never passes for it, whatever its devices call themselves."""
    of: dict[str | None, list[Any]] = {}

    def devices(name: str | None = None) -> list[Any]:
        if name not in of:
            raise RuntimeError(f"Unknown backend {name}")
        return of[name]

    monkeypatch.setattr(jax, "devices", devices)
    cpu = [device("cpu")]
    for name in ("cpu", "toy", "another"):
        toys = [device(name) for _ in range(4)]
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
        of[name] = [device(name)]
        # It is there, and programs that name no device run elsewhere.
        with pytest.raises(WrongPlatformError, match="by default JAX uses"):
            devices_of(Topology(name, 1))
