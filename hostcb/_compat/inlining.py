"""Functions inside of a program that JAX puts in the place of their calls while it lowers the program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .registry import Cost, private, with_parameters
from .rules import register_lowering

_for_inlining = functools.partial(
    private,
    without="XLA could abort: a jitted function without operands has an ordered callback, and a constant of the "
    "program.",
    promises=("H4",),
    cost=Cost.COMFORT,
    since="0.11.2",
)
_JIT = _for_inlining("jax._src.pjit:jit_p", "Is a jitted function inside of a program.")
_LOWER_JIT = _for_inlining(
    "jax._src.pjit:_pjit_lowering",
    "Lowers it to a function and its call.",
    signature=with_parameters("ctx", "jaxpr", "inline"),
)
_INLINE = _for_inlining("jax._src.api:Inline", "Lowers it in the place of its call.", attributes=("JAX_LATE",))


def inline_without_operands(concerns: Callable[[Any], bool]) -> None:
    """Lower a jitted function in the place of its call if it has no operands, and `concerns` is true for its jaxpr."""
    if not (_JIT.holds and _LOWER_JIT.holds and _INLINE.holds):
        return
    plain = _LOWER_JIT.value

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        if not operands and concerns(params["jaxpr"]):
            params["inline"] = _INLINE.value.JAX_LATE
        return plain(context, *operands, **params)

    register_lowering(_JIT.value, lower, cacheable=False)
