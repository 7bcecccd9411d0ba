"""All faults. Each is registered beside its scenario; this module imports the modules of the scenarios."""

from __future__ import annotations

from . import (  # noqa: F401 - the import of a module registers its faults
    after_failures,
    barriers,
    buffers,
    calls,
    clearing,
    command_buffers,
    compiler,
    conditions,
    counts,
    data,
    derivatives,
    devices,
    differentiated,
    donations,
    exact_results,
    executables,
    executables_alone,
    failures,
    forked,
    fuzzed,
    growth,
    jax_inside,
    kept_errors,
    layouts,
    lifetime,
    loops_that_fail,
    memory,
    meshes,
    mixed_leaves,
    nested_meshes,
    next_program,
    observed,
    odd_lengths,
    order_of_slow,
    other_threads,
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
    several_operands,
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
    traces_at_once,
    turns,
    twins,
    words,
)
from .fault import entered
from .runtime_targets import TARGETS

FAULTS = [*entered()]
"""`extensions` adds those of vendors."""

RUNTIME_TARGETS = tuple(TARGETS)
"""The runtime's targets that JAX and hostcb use for callbacks on CPU; their cells count as JAX's."""
