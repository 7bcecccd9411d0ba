"""Values of the interpreter, and the tape by which it differentiates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .expected import UnjudgedError

Flags: TypeAlias = frozenset[str]

LANES = "lanes"
"""The value differs among the lanes of the vmap around it."""

DIFFERENTIATED = "differentiated"
"""The derivative goes through the value, as JAX sees it: in a loop, if it does in any step."""

TANGENT = "tangent"
"""The value is a tangent of a rule, which JAX transposes and does not compute."""

LARGEST = 2**19
"""A cotangent above it could be rounded in float32."""


@dataclass(eq=False)
class Value:
    """With a vmap around it, the array always has a leading axis for the lanes."""

    array: Any
    flags: Flags = frozenset()


Pullback: TypeAlias = Callable[[Sequence[Value]], Sequence[Value | None]]


@dataclass
class Entry:
    """One differentiated operation."""

    results: Sequence[Value]
    operands: Sequence[Value]
    pullback: Pullback
    calls_back: bool = False
    """Whether the pullback may run callbacks: then it runs even if it gets nothing but zeros."""


@dataclass
class Tape:
    lanes_inside: bool = False
    """Whether the vmap is inside of the derivative, so that a value that all lanes share has one cotangent for all."""
    entries: list[Entry] = field(default_factory=list)

    def backward(self, seeds: Sequence[tuple[Value, Value | None]]) -> Cotangents:
        slopes = Cotangents(self.lanes_inside)
        for value, slope in seeds:
            if slope is not None:
                slopes.add(value, slope, value.flags)
        for entry in reversed(self.entries):
            arrived = [slopes.get(result) for result in entry.results]
            if not (entry.calls_back or any(arrived)):
                continue
            whole = [
                slope or Value(np.zeros_like(result.array))
                for slope, result in zip(arrived, entry.results, strict=True)
            ]
            of_results: Flags = frozenset().union(*(one.flags for one in entry.results))
            for operand, slope in zip(entry.operands, entry.pullback(whole), strict=True):
                if slope is not None and DIFFERENTIATED in operand.flags:
                    slopes.add(operand, slope, of_results)
        return slopes


class Cotangents:
    def __init__(self, lanes_inside: bool) -> None:
        self.lanes_inside = lanes_inside
        self.by_value: dict[int, tuple[Value, Value]] = {}

    def get(self, value: Value) -> Value | None:
        found = self.by_value.get(id(value))
        return found[1] if found else None

    def add(self, value: Value, slope: Value, of_results: Flags) -> None:
        array, flags = slope.array, slope.flags
        if self.lanes_inside:
            flags = value.flags & {LANES}
            if LANES in of_results and LANES not in value.flags:
                array = np.broadcast_to(array.sum(axis=0, keepdims=True, dtype=array.dtype), array.shape)
        if known := self.get(value):
            array, flags = array + known.array, flags | known.flags
        if np.abs(array).max(initial=0) > LARGEST:
            raise UnjudgedError("a derivative is too large for exact sums")
        self.by_value[id(value)] = value, Value(array, flags & {LANES})
