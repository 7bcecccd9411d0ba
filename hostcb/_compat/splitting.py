"""JAX's rules that split a loop, or drop a forward rule, for a derivative: hostcb puts its own in front of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .registry import Cost, called_with, first_lost, known_as, private
from .rules import JVPS, set_rule, with_first

_REPEATED = "A callback in a while_loop that is differentiated could run twice."

_for_loops = functools.partial(private, without=_REPEATED, promises=("H4", "H6", "X3"), cost=Cost.SOME)
_WHILE = _for_loops(
    "jax.interpreters.partial_eval:custom_partial_eval_rules",
    "Splits a while_loop for a derivative.",
    signature=called_with(2, "cond_nconsts", "cond_jaxpr", "body_nconsts", "body_jaxpr"),
    key=jax.lax.while_p,
)
_WHILE_IN_CHECKPOINT = _for_loops(
    "jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules",
    "Splits a while_loop in a checkpoint.",
    signature=called_with(4),
    key=jax.lax.while_p,
)
_SPLIT = _for_loops(
    "jax._src.interpreters.partial_eval:partial_eval_jaxpr_nounits",
    "Tells which callbacks of a while_loop run with its known part.",
    signature=called_with(3),
)
_WITHOUT_UNUSED = private(
    "jax.interpreters.partial_eval:dce_jaxpr",
    "Tells whether a derivative uses the result of a callback in a while_loop.",
    _REPEATED,
    ("X3",),
    Cost.SOME,
    called_with(2),
)
_for_forward_rules = functools.partial(
    private,
    without="A callback in the forward rule of a custom_vjp with optimize_remat=True could be dropped.",
    promises=("H4", "X3"),
    cost=Cost.COMFORT,
)
_FORWARD_RULE = _for_forward_rules(
    "jax._src.custom_derivatives:remat_opt_p", "Is the forward rule of a custom_vjp with optimize_remat=True."
)
_DROP_FORWARD_RULE = _for_forward_rules(
    "jax._src.interpreters.partial_eval:dce_rules",
    "Replaces that rule by the function itself, where no derivative is taken.",
    signature=known_as("used_outs eqn", "used_outs live_ins eqn"),
    key=_FORWARD_RULE.value,
)


def stand_before_splitting(
    concerns: Callable[..., bool], split: Callable[..., Any], split_in_checkpoint: Callable[..., Any]
) -> None:
    """Replace JAX's rules that split a `while_loop` by these, which get JAX's rule as their first argument.

    If JAX splits loops in a way unknown to hostcb, differentiated loops whose jaxprs `concerns` are refused.
    """
    unknown = first_lost(_WHILE, _WHILE_IN_CHECKPOINT, _SPLIT, _WITHOUT_UNUSED)
    if unknown is None:
        for entry, rule in ((_WHILE, split), (_WHILE_IN_CHECKPOINT, split_in_checkpoint)):
            entry.put(with_first(rule, entry.value))
    elif JVPS.holds:
        set_rule(JVPS, jax.lax.while_p, _refusing(JVPS.value[jax.lax.while_p], concerns, unknown))


def _refusing(plain: Callable[..., Any], concerns: Callable[..., bool], unknown: Any) -> Callable[..., Any]:
    def rule(*arguments: Any, **params: Any) -> Any:
        if concerns(params["cond_jaxpr"], params["body_jaxpr"]):
            raise unknown.refusal("a host callback in a while_loop that is differentiated")
        return plain(*arguments, **params)

    return rule


def split(jaxpr: Any, unknown: Sequence[bool], instantiate: Any) -> tuple[Any, Any, list[bool]]:
    """The part of a jaxpr that depends on no unknown operand, the rest, and which results are unknown."""
    known, rest, results, *_ = _SPLIT.value(jaxpr, unknown, instantiate)
    return known, rest, [*results]


def without_unused(jaxpr: Any, used: Sequence[bool]) -> tuple[Any, list[bool]]:
    """A jaxpr with what these results need, and which of its operands it uses."""
    left, operands = _WITHOUT_UNUSED.value(getattr(jaxpr, "jaxpr", jaxpr), [*used])
    return left, [*operands]


def keep_forward_rules(concerns: Callable[[Any], bool]) -> None:
    """Keep the forward rule of a `custom_vjp` with `optimize_remat=True` if `concerns` is true for its jaxpr.

    JAX runs the function itself in its place where nothing needs the residuals, and looks at no effects.
    """
    if not (_FORWARD_RULE.holds and _DROP_FORWARD_RULE.holds):
        return
    plain = _DROP_FORWARD_RULE.value

    def rule(used_outs: Sequence[bool], *others: Any) -> Any:
        *_, equation = others
        if concerns(equation.params["fwd_jaxpr"]):
            return [True] * len(equation.invars), equation
        return plain(used_outs, *others)

    _DROP_FORWARD_RULE.put(rule)
