"""What JAX must know of a callback so as neither to drop, repeat nor reorder it where it may not."""

from __future__ import annotations

from typing import Any

import jax.extend.core as jex

from . import _jax
from ._kinds import Kind


class _Effect(jex.Effect):
    """All instances of a class are one effect."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return str(self)


class HostCallbackEffect(_Effect):
    """Callbacks happen in program order on each device (H5)."""

    def __str__(self) -> str:
        return "HostCallback"


class VisibleEffect(_Effect):
    """The callback shows what JAX does, so JAX may run it as often as its surroundings (X4)."""

    def __str__(self) -> str:
        return "VisibleHostCallback"


class OnceEffect(_Effect):
    """The callback acts on the world: JAX must refuse what would drop or repeat it (X3)."""

    def __str__(self) -> str:
        return "IO"


ordered = HostCallbackEffect()
_visible = VisibleEffect()
once = OnceEffect()

_jax.register_effect(HostCallbackEffect, ordered=True)
_jax.register_effect(VisibleEffect)
_jax.register_effect(OnceEffect, rematerialised=False)


def effects_of(kind: Kind) -> set[Any]:
    """The effects of an equation with a callback of this kind."""
    effects: set[Any] = set()
    if kind.ordered:
        effects.add(ordered)
    if kind.once:
        effects.add(once)
    if kind.visible and not kind.ordered:
        effects.add(_visible)
    return effects
