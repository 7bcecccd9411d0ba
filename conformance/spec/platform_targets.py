"""What JAX makes of callbacks on each platform, what a platform cannot have, and what compiles for it without hardware.

A platform without an entry has the depth `run` alone: nothing says what its programs must look like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .callbacks import Callback, Refusal


@dataclass(frozen=True)
class CompileOnly:
    """A vendor's compiler that needs no hardware."""

    package: str
    """The distribution that has the compiler, by its name on the package index."""
    names: Mapping[tuple[int, int], str]
    """The compiler's names of topologies, by the number of processes and of all devices."""
    options: Mapping[tuple[int, int], Mapping[str, object]] = field(default_factory=dict)
    """Further arguments for some of these topologies."""
    environment: Mapping[str, str] = field(default_factory=dict)
    target_config: str = ""
    """The file in `worker/target_configs/` that describes a GPU; empty where the topology's name says enough."""
    seconds: float = 0.1
    """What one program costs, about."""


@dataclass(frozen=True)
class PlatformTarget:
    """How the programs of one platform call back."""

    name: str
    calls: str | None = None
    """The custom-call target of ordinary callbacks; None for a platform that sends and receives."""
    partitioned: str | None = None
    """The target of callbacks that every device of a mesh makes with its own shard."""
    in_place: tuple[str, ...] = ()
    """The targets of callbacks that get buffers of the device's memory; empty where there are none."""
    taps: tuple[str, ...] = ()
    """Targets that hostcb registers by itself, for its taps."""
    in_place_for_all: bool = False
    """Whether an implementation may use those targets for its ordinary callbacks, too."""
    compiler: CompileOnly | None = None
    plugins: tuple[str, ...] = ()
    """The distributions with JAX's plugin for the platform, any of which is enough."""
    jax: str = ""
    """The releases whose own callbacks JAX lowers for the platform; all if empty."""
    extra: str = ""
    """The extra of JAX that installs one of them."""

    @property
    def transfers(self) -> bool:
        """Whether callbacks are operations that send and receive."""
        return self.calls is None

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.calls, self.partitioned, *self.in_place, *self.taps)))

    def target_of(self, callee: str) -> str | None:
        """Which of `targets` a custom call names; None if it does not call back.

        A name of hostcb's may end with the number of a handler.
        """
        return next((each for each in (callee, re.sub(r"_\d+$", "", callee)) if each in self.targets), None)

    def cannot(self, callback: Callback) -> Refusal | None:
        """The refusal of a callback that the platform cannot have; None if it can."""
        if any(part.function in _IN_PLACE for part in (callback, *callback.parts)) and not self.in_place:
            return Refusal((ValueError, NotImplementedError), (f"not supported on {self.name}",))
        if callback.partitioned and self.partitioned is None:
            words = (f"not supported on {self.name}", f"not implemented on {self.name}")
            return Refusal((NotImplementedError,), words)
        return None


_IN_PLACE = ("buffer_callback", "dlpack_callback")

CPU = PlatformTarget(
    "cpu",
    "xla_ffi_python_cpu_callback",
    "xla_ffi_partitioned_python_cpu_callback",
    ("xla_buffer_python_cpu_callback",),
    taps=("hostcb_tap",),
    in_place_for_all=True,
    # The compiler of the CPU is in every jaxlib.
    compiler=CompileOnly("jaxlib", {(1, 1): "", (1, 2): "", (1, 4): "", (1, 8): ""}),
)


def _gpu(name: str, compiler: CompileOnly | None, plugins: tuple[str, ...], extra: str) -> PlatformTarget:
    buffers = "xla_buffer_python_gpu_callback"
    return PlatformTarget(
        name,
        "xla_ffi_python_gpu_callback",
        "xla_ffi_partitioned_python_gpu_callback",
        (buffers, f"{buffers}_cmd_buffer"),
        compiler=compiler,
        plugins=plugins,
        extra=extra,
    )


# Slices, hosts of each, devices of each host.
_GPU_TOPOLOGIES = {(1, 1): "1x1x1", (1, 2): "1x1x2", (1, 4): "1x1x4", (1, 8): "1x1x8", (2, 8): "1x2x4"}

CUDA = _gpu(
    "cuda",
    CompileOnly("jax-cuda13-plugin", _GPU_TOPOLOGIES, target_config="h100.txtpb", seconds=0.4),
    ("jax-cuda13-plugin", "jax-cuda12-plugin"),
    "cuda13",
)
ROCM = _gpu(
    "rocm",
    CompileOnly("jax-rocm7-plugin", _GPU_TOPOLOGIES, target_config="mi300x.txtpb", seconds=0.2),
    ("jax-rocm7-plugin", "jax-rocm60-plugin"),
    "rocm7-local",
)
ONEAPI = replace(_gpu("oneapi", None, ("intel-extension-for-openxla",), "oneapi"), jax=">=0.12")

TPU = PlatformTarget(
    "tpu",
    plugins=("libtpu",),
    extra="tpu",
    compiler=CompileOnly(
        "libtpu",
        {(1, 1): "v5e:1x1", (1, 4): "v5e:2x2", (2, 8): "v5e:2x4", (4, 16): "v5e:4x4"},
        # By default a host has four chips, which one chip is not.
        options={(1, 1): {"chips_per_host_bounds": (1, 1, 1)}},
        environment={
            # libtpu locks the machine's chips, of which a compiler uses none.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            # Without these, libtpu asks the cloud's metadata server where it is, and warns.
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        },
        seconds=0.06,
    ),
)

TARGETS = {target.name: target for target in (CPU, CUDA, ROCM, TPU, ONEAPI)}
"""By the name of the platform."""


def why_not_lowered(platform: str) -> str:
    return (
        f"{platform} has no checks of lowered programs, so its cells can only run (--depth run);"
        f" other depths are for {', '.join(TARGETS)}"
    )


MULTI_HOST = {"tpu": (2, 8), "cuda": (2, 8), "rocm": (2, 8)}
"""The topology of several hosts, as processes and devices, whose cells are compiled without being asked for."""
