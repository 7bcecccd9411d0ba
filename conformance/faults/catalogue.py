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
    jax_inside,
    lifetime,
    meshes,
    mixed_leaves,
    odd_lengths,
    outside_jit,
    parts_of_meshes,
    places,
    processes,
    programs_at_once,
    pure,
    raw,
    refusals,
    reported_bugs,
    reports,
    several_processes,
    sharing,
    sizes,
    solvers,
    tangents,
    taps,
    texts,
    threads,
    traces,
    twins,
    words,
)
from .fault import entered
from .runtime_targets import TARGETS

FAULTS = [*entered()]
"""`extensions` adds those of vendors."""

RUNTIME_TARGETS = tuple(TARGETS)
"""The runtime's targets that JAX and hostcb use for callbacks on CPU; their cells count as JAX's."""
