"""A span with the callback's name for each run of a user function, in the profiles of `jax.profiler` (H31)."""

from __future__ import annotations

from typing import Any

import jax

from ..._compat.profiles import on_profiles
from ..._spec.naming import NO_DEVICE, device_name
from . import observers
from .observers import Observer, Run

# XLA's profiler takes the text after this character for fields.
_SEPARATOR = "#"


class _Spans(Observer):
    """Puts each run into JAX's profile, on the line of the thread that runs it."""

    def started(self, run: Run) -> Any:
        callback = run.host.callback
        name = f"{callback.kind.name}: {callback.name}".replace(_SEPARATOR, " ")
        where = NO_DEVICE if run.device is None else device_name(run.device)
        return jax.profiler.TraceAnnotation(name, device=where).__enter__()

    def ended(self, run: Run, state: Any, failure: BaseException | None) -> None:
        state.__exit__(None, None, None)


_spans = _Spans()
on_profiles(lambda on: (observers.observe if on else observers.leave)(_spans))
