"""The effects by which JAX knows whether it may drop, repeat or reorder a callback."""

from __future__ import annotations

from typing import Any

from .. import _compat
from .._compat.extend import Effect
from .kinds import Kind


class _Effect(Effect):
    """Base class; all instances of one subclass are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return str(self)


class HostCallbackEffect(_Effect):
    """On each device callbacks run in program order (H5)."""

    def __str__(self) -> str:
        return "HostCallback"


class VisibleEffect(_Effect):
    """A debug callback, which runs as often as JAX runs the code around it (X4)."""

    def __str__(self) -> str:
        return "VisibleHostCallback"


class OnceEffect(_Effect):
    """A callback with side effects: JAX must refuse a transformation that would drop or repeat it (X3)."""

    def __str__(self) -> str:
        return "IO"


class TrackedEffect(_Effect):
    """Of no equation: a program without an order has it while it is lowered for CPUs, so that it gets a token (H13)."""

    def __str__(self) -> str:
        return "TrackedHostCallback"


# With these, and the order, a program may take JAX's fast dispatch.
HARMLESS = (VisibleEffect, OnceEffect)

ordered = HostCallbackEffect()
_visible = VisibleEffect()
once = OnceEffect()
tracked = TrackedEffect()

_compat.register_effect(HostCallbackEffect, ordered=True)
_compat.register_effect(TrackedEffect, ordered=True)
_compat.register_effect(VisibleEffect)
_compat.register_effect(OnceEffect, rematerialised=False)


def effects_of(kind: Kind) -> set[Any]:
    """Return the effects of an equation with a callback of this kind."""
    effects: set[Any] = set()
    if kind.ordered:
        effects.add(ordered)
    if kind.once:
        effects.add(once)
    if kind.visible and not kind.ordered:
        effects.add(_visible)
    return effects
