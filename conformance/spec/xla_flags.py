"""The XLA flags that the suite sets. XLA ends a process that sets an unknown flag.

This module does not import JAX, since pytest processes import it and do not need JAX.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

from .versions import version_matches

QUICK_COMPILATION = (
    *("--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"),
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_backend_extra_options=xla_cpu_disable_tiled_emitter,xla_cpu_use_multi_output_fusion",
)
"""Flags that turn off LLVM's optimizations, select XLA:CPU's older code generators, and leave a program one module.

A run spends most of its time on compilation. Earlier passes fix the order and the operands of callbacks. From JAX
0.11.1 on each kernel costs 8 ms, for a context and passes of MLIR: so kernels of the same operand are fused.
"""

KNOWN_TO = {
    # Asked for from 0.5.0 on; 0.4.31 does not have it.
    "--xla_cpu_parallel_codegen_split_count": ">=0.5.0",
    "--xla_cpu_use_fusion_emitters": ">=0.5.3,<0.11.1",
    # The flag is older, but the tiled emitter belongs to the newer code generator.
    "--xla_backend_extra_options": ">=0.11.1",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds": ">=0.8.0",
    "--xla_cpu_collective_call_terminate_timeout_seconds": ">=0.8.0",
    "--xla_cpu_collective_timeout_seconds": ">=0.8.0",
}
"""The jaxlib versions that know a flag, if not all do from 0.4.31 on, the oldest version on which the suite runs."""


def names(flag: str, words: str) -> bool:
    """Whether the text sets this flag, with any value."""
    return f"{flag.partition('=')[0]}=" in words


def known(flags: Iterable[str], jaxlib: str | None = None) -> tuple[str, ...]:
    """The flags that the XLA of a jaxlib knows, by default of the installed jaxlib."""
    jaxlib = jaxlib or importlib.metadata.version("jaxlib")
    return tuple(flag for flag in flags if version_matches(jaxlib, KNOWN_TO.get(_name(flag), ">=0")))


def why_unknown(flags: Iterable[str], jaxlib: str | None = None) -> str | None:
    """The reason if the XLA of a jaxlib does not know all these flags; otherwise None."""
    flags = tuple(flags)
    if not flags:
        # Most cells ask for none, and looking up a version reads a file.
        return None
    jaxlib = jaxlib or importlib.metadata.version("jaxlib")
    unknown = [_name(flag) for flag in flags if flag not in known(flags, jaxlib)]
    return f"the XLA of jaxlib {jaxlib} has no {unknown[0]}" if unknown else None


def _name(flag: str) -> str:
    return flag.partition("=")[0]
