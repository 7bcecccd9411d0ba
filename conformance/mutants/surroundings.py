"""Callbacks that are right alone, and wrong beside other programs, on other devices, or in a solver."""

from __future__ import annotations

from typing import Any

import numpy as np

from .host_functions import around, surround
from .mutant import Library, Names, mutant


@mutant(
    "a program calls the function of an earlier program with equal HLO",
    "id_tap/case.equal_programs_from_a_cache.jit/* id_tap/case.compiled_ahead.jit/* id_tap/case.compiled_ahead.pmap/*",
    "wrong function at callback",
)
def first_of_equal(library: Library) -> Names:
    firsts: dict[Any, Any] = {}

    def run(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
        # As if programs with equal HLO shared the functions, too, and not the executable alone.
        return firsts.setdefault(operand.shape, function)(operand, *arguments, **options)

    return surround(library, run, "id_tap")


@mutant(
    "each device gives its buffer callback the part of the device that was first",
    "dlpack_callback/case.parts_of_buffers.shard_map/*",
    "result at result",
)
def part_of_another(library: Library) -> Names:
    parts: dict[Any, Any] = {}

    def run(function: Any, buffer: Any) -> Any:
        part = np.from_dlpack(buffer).copy()
        return function(parts.setdefault(part.shape, part))

    return surround(library, run, "dlpack_callback")


@mutant(
    "a callback in a solver, or in a shard_map over some axes, runs twice",
    "id_tap/case.in_solvers.jit/* debug_callback/case.partially_manual.shard_map/*",
    "wrong count at callback, duplicate at callback",
)
@around("id_tap", "debug.callback")
def again(function: Any, *arguments: Any, **options: Any) -> Any:
    function(*arguments, **options)
    return function(*arguments, **options)
