"""All faults. Each is registered beside its scenario; this module imports the modules of the scenarios."""

from __future__ import annotations

from . import (  # noqa: F401 - the import of a module registers its faults
    barriers,
    buffers,
    calls,
    compiler,
    counts,
    data,
    derivatives,
    devices,
    differentiated,
    donations,
    executables,
    failures,
    fuzzed,
    growth,
    jax_inside,
    kept_errors,
    layouts,
    lifetime,
    meshes,
    next_program,
    odd_lengths,
    other_threads,
    places,
    processes,
    programs_at_once,
    raw,
    refusals,
    reported_bugs,
    reports,
    several_processes,
    sharing,
    sizes,
    solvers,
    stops,
    tangents,
    taps,
    texts,
    threads,
    traces,
    twins,
)
from .fault import entered
from .runtime_targets import TARGETS

FAULTS = [*entered()]
"""`extensions` adds those of vendors."""

RUNTIME_TARGETS = tuple(TARGETS)
"""The runtime's targets that JAX and hostcb use for callbacks on CPU; their cells count as JAX's."""
