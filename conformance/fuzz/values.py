"""Values of the interpreter: arrays, and what each derivative that is being taken knows of them.

A value is plain, or it is traced by a derivative and has below it what it is for the derivatives further out, as in
JAX. So a derivative of a derivative needs nothing of its own: what the inner one computes is traced by the outer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True)
class Perhaps:
    """The axis of a vmap among whose lanes a value may differ for JAX, or not.

    A tangent or a cotangent that JAX knows to be zero is not batched, and it is where a branch that does not run has
    another. So nothing but lanes with different numbers tells that it is batched.
    """

    axis: int


Flags: TypeAlias = frozenset[int | str | Perhaps]
"""What JAX knows of a value before the program runs.

A number is the axis of a vmap, the outermost first: the value differs among its lanes. A text is the flag of a
derivative: it goes through the value, in a loop if it does so in any step.
"""

NONE: Flags = frozenset()


def union(flags: Iterable[Flags]) -> Flags:
    return NONE.union(*flags)


def lanes_of(flags: Flags) -> Flags:
    """What the flags tell of vmaps, without the derivatives."""
    return frozenset(one for one in flags if not isinstance(one, str))


def axes_of(flags: Flags) -> frozenset[int]:
    """The axes of the vmaps among whose lanes the value differs, or may differ."""
    return frozenset(one.axis if isinstance(one, Perhaps) else one for one in flags if not isinstance(one, str))


def without(flags: Flags, axes: Iterable[int]) -> Flags:
    """The flags without those of some axes."""
    return flags - {*axes} - {Perhaps(axis) for axis in axes}


def perhaps(flags: Flags) -> Flags:
    """The flags, with each axis of a vmap as one of which it is open."""
    return frozenset(Perhaps(one) if isinstance(one, int) else one for one in flags)


@dataclass(eq=False)
class Plain:
    """An array with a leading axis for each vmap around it, the outermost first."""

    array: Any
    flags: Flags = NONE


@dataclass(eq=False)
class Traced:
    """A value that a derivative goes through."""

    derivative: Derivative
    below: Value
    """The value for the derivatives further out."""
    tangent: Value | None = None
    """Of forward mode; None is zero."""

    @property
    def array(self) -> Any:
        return self.below.array

    @property
    def flags(self) -> Flags:
        return self.below.flags | {self.derivative.flag}


Value: TypeAlias = Plain | Traced
Pullback: TypeAlias = Callable[[Sequence[Value]], Sequence[Value | None]]


@dataclass
class Entry:
    """One operation of reverse mode."""

    results: Sequence[Traced]
    operands: Sequence[Value]
    pullback: Pullback
    depth: int
    """The number of vmaps around the operands."""
    always: bool = False
    """Whether the pullback runs even if it gets nothing but zeros: it may call back, or other devices wait for it."""


@dataclass(eq=False)
class Derivative:
    """One derivative while it is taken: in forward mode, or in reverse mode by a tape."""

    level: int
    """The number of derivatives around it."""
    depth: int
    """The number of vmaps around it. Those inside of it share the cotangent of a value that their lanes share."""
    forward: bool = False
    of_rule: bool = False
    """Whether it traces the tangent in a rule, which JAX transposes and does not compute."""
    entries: list[Entry] = field(default_factory=list)

    @property
    def flag(self) -> str:
        return f"derivative {self.level}"


def axes_that_differ(values: Iterable[Value]) -> frozenset[int]:
    """The axes of the vmaps among whose lanes one of these values differs for JAX, as far as it is certain."""
    return frozenset(
        axis for one in values for axis in axes_of(one.flags) if axis in one.flags or _differs(one.array, axis)
    )


def _differs(array: Any, axis: int) -> bool:
    return not np.array_equal(array, np.broadcast_to(np.take(array, [0], axis), array.shape))


def innermost(values: Iterable[Value]) -> Derivative | None:
    """The derivative that sees an operation of these values first."""
    found = [one.derivative for one in values if isinstance(one, Traced)]
    return max(found, key=lambda one: one.level, default=None)


def below(value: Value, derivative: Derivative) -> Value:
    """What a value is for the derivatives outside of this one."""
    return value.below if isinstance(value, Traced) and value.derivative is derivative else value


def tangent_of(value: Value, derivative: Derivative) -> Value | None:
    return value.tangent if isinstance(value, Traced) and value.derivative is derivative else None


def plain(value: Value) -> Plain:
    """The value without any derivative."""
    while isinstance(value, Traced):
        value = value.below
    return value
