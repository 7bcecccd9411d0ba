"""A span with the callback's name for each run of a user function, in the profiles of `jax.profiler` (H31)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..._compat.profiles import on_profiles
from ..._spec.naming import NO_DEVICE, device_name
from . import watching
from .watching import Watched

# XLA's profiler takes the text after this character for fields.
_SEPARATOR = "#"


class Spans:
    """Puts each run into JAX's profile, on the line of the thread that runs it."""

    def around(
        self, host: Watched, device: Any, arrays: Sequence[Any], invoke: Callable[..., Any]
    ) -> Callable[..., Any]:
        kind, callback = host.about.kind, host.callback
        # A printer's own name is that of its class.
        name = kind if kind != callback.kind.name else f"{kind}: {callback.name}".replace(_SEPARATOR, " ")
        where = NO_DEVICE if device is None else device_name(device)

        def spanned(*arguments: Any) -> Any:
            with jax.profiler.TraceAnnotation(name, device=where):
                return invoke(*arguments)

        return spanned


_spans = Spans()


def _switch(on: bool) -> None:
    (watching.watch if on else watching.leave)(_spans)


on_profiles(_switch)
