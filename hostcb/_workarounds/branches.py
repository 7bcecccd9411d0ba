"""`cond` and `platform_dependent` with ordered callbacks.

A `cond` without any result, followed by a call of a function that takes the token, makes the compiler contradict itself
about the shape of a single token. So it gets a dummy value.

`lax.platform_dependent` lowers to the branches of the platforms of the program. It does not return a token that only
the other branches use. This repairs JAX's own ordered callbacks as well.

- docs/jax-bugs/cond-without-results.md: JAX >=0.11.2
- docs/jax-bugs/ordered-in-other-platforms-branch.md: JAX >=0.6.1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .. import _compat
from .._compat import rules
from .._compat.extend import Literal
from .dummies import dummy_type


def work_around(effect: Any) -> None:
    """Avoid the bugs; `effect` is the one of ordered callbacks."""
    if _compat.lower_cond is not None:
        rules.register_lowering(jax.lax.cond_p, _cond_rule(_with_all_tokens(_compat.lower_cond), effect))


def _with_all_tokens(lower_cond: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's rule for `cond`, which also returns the tokens that no branch of this platform uses."""

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        inner = context.replace(tokens_out=None)
        results = lower_cond(inner, *operands, **params)
        if inner.tokens_out is not None:
            context.set_tokens_out(context.tokens_in.update_tokens(inner.tokens_out))
        return results

    return lower


def _cond_rule(plain: Callable[..., Any], effect: Any) -> Callable[..., Any]:
    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        branches = params.get("branches", ())
        if context.avals_out or not any(effect in branch.effects for branch in branches):
            return plain(context, *operands, **params)
        widened = context.replace(avals_out=[dummy_type()])
        plain(widened, *operands, **{**params, "branches": tuple(map(_with_result, branches))})
        context.set_tokens_out(widened.tokens_out)
        return []

    return lower


def _with_result(branch: Any) -> Any:
    jaxpr = getattr(branch, "jaxpr", branch)
    changed = jaxpr.replace(outvars=[Literal(np.uint32(0), dummy_type())])
    return changed if jaxpr is branch else branch.replace(jaxpr=changed)
