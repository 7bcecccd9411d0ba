"""Tells when a profile of JAX (`jax.profiler.start_trace`) begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .registry import Cost, called_with, private

_STATE = private(
    "jax._src.profiler:_profile_state",
    "Tells when a profile of jax.profiler begins and ends.",
    "Profiles of jax.profiler do not have the names of callbacks.",
    ("H31",),
    Cost.COMFORT,
    methods={"reset": called_with(0)},
)


def on_profiles(tell: Callable[[bool], None]) -> None:
    """Call `tell` when a profile has begun or ended, and now, with whether one is on."""
    if not _STATE.holds:
        return
    plain: Any = type(_STATE.value)

    class Watched(plain):
        # JAX notes here that a profile has begun or ended, whichever of its functions does that. Releases do so in
        # attributes of different names, so the profiler is asked.
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            tell(jax.profiler.TraceAnnotation.is_enabled())

    try:
        tell(jax.profiler.TraceAnnotation.is_enabled())
        # JAX's functions refer to this very object.
        _STATE.value.__class__ = Watched
    except (AttributeError, TypeError) as error:
        # A state that is made otherwise, or a profiler that does not say.
        _STATE.value, _STATE.problem = None, f"cannot be watched: {error}"
