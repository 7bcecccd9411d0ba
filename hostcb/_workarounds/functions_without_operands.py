"""Jitted functions without operands that have an ordered callback (H4).

XLA puts the body of such a function in the place of its call, and makes all of it wait for the token. An equal constant
elsewhere in the program is then one too many, but cannot be removed, and the compiler aborts the process. hostcb lets
JAX put the body there.

- docs/jax-bugs/equal-functions-abort.md: JAX >=0.11.2
"""

from __future__ import annotations

from typing import Any

from .._compat import inlining
from .._spec.effects import HostCallbackEffect


def _is_ordered(jaxpr: Any) -> bool:
    return any(isinstance(effect, HostCallbackEffect) for effect in jaxpr.effects)


inlining.inline_without_operands(_is_ordered)
