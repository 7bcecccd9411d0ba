"""Where a cell runs: a platform and a number of its devices, and how those dispatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

JAX_NAMES = {"cpu": "cpu", "cuda": "cuda", "rocm": "rocm", "tpu": "tpu"}
"""What `JAX_PLATFORMS` calls the platforms this suite knows by name; others pass unchanged."""

GPU_PLATFORMS = ("cuda", "rocm")

DEFAULT = "default"
SYNCHRONOUS = "sync"
"""The CPU's devices run a computation in the thread that starts it, where they can."""
OPTIMISED = "optimised"
"""XLA:CPU compiles as it would by itself."""

CPU_CONFIGURATIONS = (SYNCHRONOUS, OPTIMISED)
"""What a CPU's worker process is started for, since JAX or XLA asks for it once."""

QUICK_COMPILATION = ("--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false")
"""Less work for LLVM, and the older way in which XLA:CPU generates code for it.

A run mostly compiles. What surrounds a callback in a program, its order and its operands, is settled before this.
"""


@dataclass(frozen=True)
class Topology:
    platform: str
    device_count: int
    configuration: str = DEFAULT
    """One of those that take a worker of their own."""

    @property
    def name(self) -> str:
        plain = f"{self.platform}-{self.device_count}dev"
        return plain if self.configuration == DEFAULT else f"{plain}+{self.configuration}"

    def environment(self, inherited: Mapping[str, str], quick: Sequence[str] = QUICK_COMPILATION) -> dict[str, str]:
        """The environment of a worker on this topology, with these flags to compile in a quick way where it may.

        `JAX_PLATFORMS` names one platform only: where it is absent JAX must say so, and may not
        fall back to another that would then pass in its name.
        """
        environment = dict(inherited)
        environment["JAX_PLATFORMS"] = JAX_NAMES.get(self.platform, self.platform)
        if self.platform == "cpu":
            flags = [
                flag
                for flag in inherited.get("XLA_FLAGS", "").split()
                if not flag.startswith("--xla_force_host_platform_device_count")
            ]
            flags.append(f"--xla_force_host_platform_device_count={self.device_count}")
            if self.configuration != OPTIMISED:
                # What the user says of them stands.
                flags += [flag for flag in quick if not names(flag, " ".join(flags))]
            environment["XLA_FLAGS"] = " ".join(flags)
        if self.configuration == SYNCHRONOUS:
            environment["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "0"
        return environment


def names(flag: str, words: str) -> bool:
    """Whether the words are of this flag, whatever its value."""
    return f"{flag.partition('=')[0]}=" in words


class WrongPlatformError(Exception):
    """The devices that were asked for are not there."""


def check_devices(topology: Topology, platforms: list[str], platform_version: str) -> None:
    """Refuse to run on anything but what was asked for.

    `platforms` are the platform names of the devices JAX found; CUDA and ROCm devices both call
    themselves "gpu" and differ in the platform version.
    """
    found = ", ".join(f"{platforms.count(name)} {name}" for name in sorted(set(platforms)))
    wanted = "gpu" if topology.platform in GPU_PLATFORMS else topology.platform
    if set(platforms) != {wanted}:
        raise WrongPlatformError(f"asked for {topology.platform} devices, JAX found {found or 'none'}")
    if topology.platform in GPU_PLATFORMS and topology.platform not in platform_version.lower():
        raise WrongPlatformError(f"asked for {topology.platform} devices, JAX found {found} of {platform_version!r}")
    if len(platforms) < topology.device_count:
        raise WrongPlatformError(f"asked for {topology.device_count} {topology.platform} devices, JAX found {found}")
