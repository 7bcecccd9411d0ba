"""Callbacks that are right alone, and wrong beside other programs, on other devices, or in a solver."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..oracle.verdicts import Stage
from .host_functions import surround
from .mutant import Library, Mutant, Names, at


def _first_of_equal(library: Library) -> Names:
    firsts: dict[Any, Any] = {}

    def run(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
        # As if programs with equal HLO shared the functions, too, and not the executable alone.
        return firsts.setdefault(operand.shape, function)(operand, *arguments, **options)

    return surround(library, run, "id_tap")


def _part_of_another(library: Library) -> Names:
    parts: dict[Any, Any] = {}

    def run(function: Any, buffer: Any) -> Any:
        part = np.from_dlpack(buffer).copy()
        return function(parts.setdefault(part.shape, part))

    return surround(library, run, "dlpack_callback")


def _again(library: Library) -> Names:
    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        function(*arguments, **options)
        return function(*arguments, **options)

    return surround(library, run, "id_tap", "debug.callback")


MUTANTS = (
    Mutant(
        "first_of_equal",
        "a program calls the function of an earlier program with equal HLO",
        _first_of_equal,
        (
            "id_tap/case.equal_programs_from_a_cache.jit/*",
            "id_tap/case.compiled_ahead.jit/*",
            "id_tap/case.compiled_ahead.pmap/*",
        ),
        at(Stage.CALLBACK, "wrong function"),
    ),
    Mutant(
        "part_of_another",
        "each device gives its buffer callback the part of the device that was first",
        _part_of_another,
        ("dlpack_callback/case.parts_of_buffers.shard_map/*",),
        at(Stage.RESULT, "result"),
    ),
    Mutant(
        "again",
        "a callback in a solver, or in a shard_map over some axes, runs twice",
        _again,
        ("id_tap/case.in_solvers.jit/*", "debug_callback/case.partially_manual.shard_map/*"),
        at(Stage.CALLBACK, "wrong count", "duplicate"),
    ),
)
