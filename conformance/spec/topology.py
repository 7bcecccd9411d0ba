"""The topology of a cell: a platform, its devices, their processes, how they dispatch, and the depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .depths import Depth
from .platform_targets import TARGETS
from .platforms import Platform, platform_named
from .topology_names import UnknownTopologyError as UnknownTopologyError
from .topology_names import parts_of
from .xla_flags import QUICK_COMPILATION, known, names

OTHER_DEFAULTS = ("JAX_PLATFORM_NAME", "JAX_DEFAULT_DEVICE")
"""Settings with which programs that name no device would run on another one: every worker has a CPU device, too."""

DEFAULT = "default"
SYNCHRONOUS = "sync"
"""CPU devices run a computation in the thread that starts it, if they can."""
OPTIMISED = "optimised"
"""XLA:CPU compiles with its default flags."""

CPU_CONFIGURATIONS = (SYNCHRONOUS, OPTIMISED)
"""Configurations that need a CPU worker process of their own, since JAX or XLA reads them only at its start."""


@dataclass(frozen=True)
class Topology:
    platform: str
    device_count: int
    """The devices of all processes."""
    configuration: str = DEFAULT
    """A configuration that needs a worker of its own, or the default."""
    processes: int = 1
    """How many processes have the devices, each as many as the others."""
    depth: Depth = Depth.RUN

    @property
    def local_device_count(self) -> int:
        """The devices of one process."""
        return self.device_count // self.processes

    @property
    def in_several_processes(self) -> bool:
        """Whether several processes run each cell together: below the depth of a run, one process does."""
        return self.processes > 1 and self.depth is Depth.RUN

    @property
    def name(self) -> str:
        """For example `cpu-8dev`, `cpu-2x4` for two processes of four devices, or `tpu-4dev@compile`."""
        return self.name_with()

    def name_with(self, *options: str) -> str:
        """The name with a cell's own options, such as its placement: they come before the depth."""
        devices = f"{self.device_count}dev" if self.processes == 1 else f"{self.processes}x{self.local_device_count}"
        own = () if self.configuration == DEFAULT else (self.configuration,)
        name = "+".join((f"{self.platform}-{devices}", *own, *options))
        return name if self.depth is Depth.RUN else f"{name}@{self.depth.value}"

    @property
    def jax_name(self) -> str:
        """The name under which the platform is registered with JAX."""
        return platform_named(self.platform).jax_name

    def environment(
        self, inherited: Mapping[str, str], quick: Sequence[str] = QUICK_COMPILATION, jaxlib: str | None = None
    ) -> dict[str, str]:
        """The environment of a worker on this topology; `quick` are flags for quick compilation.

        `jaxlib` is the version in the worker's environment, by default the installed one.

        `JAX_PLATFORMS` names the platform first: then JAX fails if the platform is absent. JAX's own callbacks need a
        CPU device beside it. `worker.devices` checks that no cell runs on that CPU device in the platform's name.
        """
        platform = platform_named(self.platform)
        own = {name: value for name, value in inherited.items() if name not in OTHER_DEFAULTS}
        environment = {**platform.environment, **own}
        # A description may be of JAX's CPU devices, as for a trial of the description; JAX takes each name once.
        environment["JAX_PLATFORMS"] = "cpu" if self.jax_name == "cpu" else f"{self.jax_name},cpu"
        if self.depth is not Depth.RUN:
            # Other platforms are lowered and compiled for beside the CPU's devices, which every machine has.
            environment["JAX_PLATFORMS"] = "cpu"
            target = TARGETS.get(self.platform)
            if target is not None and target.compiler is not None:
                environment = {**target.compiler.environment, **environment}
        if environment["JAX_PLATFORMS"] == "cpu":
            flags = [
                flag
                for flag in inherited.get("XLA_FLAGS", "").split()
                if not flag.startswith("--xla_force_host_platform_device_count")
            ]
            local = self.local_device_count if self.depth is Depth.RUN else self.device_count
            # A count of zero asks for all devices. The CPU has as many as a flag says, and so one.
            flags.append(f"--xla_force_host_platform_device_count={max(local, 1)}")
            if self.depth is Depth.RUN:
                flags += [flag for flag in platform.xla_flags if not names(flag, " ".join(flags))]
            if self.configuration != OPTIMISED and (self.platform == "cpu" or self.depth is Depth.RUN):
                # A flag that the user has set keeps its value.
                flags += [flag for flag in known(quick, jaxlib) if not names(flag, " ".join(flags))]
            environment["XLA_FLAGS"] = " ".join(flags)
        elif platform.xla_flags:
            inherited_flags = inherited.get("XLA_FLAGS", "")
            added = [flag for flag in platform.xla_flags if not names(flag, inherited_flags)]
            environment["XLA_FLAGS"] = " ".join((*inherited_flags.split(), *added))
        if self.configuration == SYNCHRONOUS:
            environment["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "0"
        return environment


def parse_topology(name: str) -> tuple[Topology, list[str]]:
    """The topology with this name, and the options of a cell in it."""
    parts = parts_of(name)
    own = [option for option in parts.options if option in CPU_CONFIGURATIONS]
    rest = [option for option in parts.options if option not in own[:1]]
    configuration = own[0] if own else DEFAULT
    return Topology(parts.platform, parts.devices, configuration, parts.processes, parts.depth), rest


class WrongPlatformError(Exception):
    """JAX does not have the requested devices."""


def check_devices(topology: Topology, platforms: list[str], platform_version: str) -> None:
    """Raise `WrongPlatformError` if JAX's devices are not the requested ones.

    `platforms` are the `platform` attributes of the devices that JAX returned for this platform, by the name under
    which it is registered. The devices of a platform that nobody has described may have any `platform`.
    """
    wanted = platform_named(topology.platform)
    found = ", ".join(f"{platforms.count(name)} {name}" for name in sorted(set(platforms)))
    if not platforms or (wanted.devices and not {*platforms} <= {*wanted.devices}):
        raise WrongPlatformError(
            f"asked for {topology.platform} devices, JAX found {found or 'none'}{_wants(wanted, 'devices')}"
        )
    if wanted.version and not any(word.lower() in platform_version.lower() for word in wanted.version):
        raise WrongPlatformError(
            f"asked for {topology.platform} devices, JAX found {found} of {platform_version!r}"
            + _wants(wanted, "version")
        )
    if len(platforms) < topology.device_count:
        raise WrongPlatformError(f"asked for {topology.device_count} {topology.platform} devices, JAX found {found}")


def _wants(platform: Platform, key: str) -> str:
    texts = getattr(platform, key)
    return f"; `{key}` in {platform.source} wants {' or '.join(map(repr, texts))}" if texts else ""
