"""JAX's rules for loops and branches, which hostcb wraps in rules of its own."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .extend import AbstractToken
from .registry import Cost, called_with, first_lost, known_as, private
from .rules import JVPS, set_rule, with_first

_HOISTED = "A callback in a scan that is differentiated could run once in place of once a step."

_for_refs = functools.partial(
    private,
    without="The condition of a while_loop could see the old value of a mutable array that the loop's body changes.",
    promises=("H4",),
    cost=Cost.SOME,
)
_DISCHARGE = _for_refs(
    "jax._src.state.discharge:_discharge_rules",
    "Finds while_loops whose condition uses a mutable array that the body changes.",
    signature=known_as(
        "ctx args cond_jaxpr body_jaxpr cond_nconsts body_nconsts",
        "should_discharge in_avals out_avals args cond_jaxpr body_jaxpr cond_nconsts body_nconsts",
    ),
    key=jax.lax.while_p,
    other_places=("jax._src.state.discharge:_partial_discharge_rules",),
)
_REF_EFFECT = _for_refs("jax._src.state.types:RefEffect", "Tells that a loop's body uses a mutable array.")
_READ_EFFECT = _for_refs("jax._src.state.types:ReadEffect", "Tells that a loop's body only reads it.")
_for_scans = functools.partial(
    private, without=_HOISTED, promises=("H4", "X3"), cost=Cost.SOME, link="https://github.com/jax-ml/jax/issues/16637"
)
_HOISTING = _for_scans(
    "jax._src.lax.control_flow.loops:_scan_known_hoisting",
    "Leaves callbacks without operands in a scan that is differentiated.",
    signature=known_as("jaxpr_known known_consts num_res", "jaxpr_known known_consts num_ures num_sres"),
)
_SPLITTING = _for_scans(
    "jax._src.interpreters.partial_eval:partial_eval_jaxpr_nounits",
    "Does the same in a checkpoint.",
    signature=known_as("jaxpr unknowns instantiate"),
)
_SCAN_IN_CHECKPOINT = _for_scans(
    "jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules",
    "Tells that it is a scan in a checkpoint whose body is split.",
    signature=known_as("saveable unks_in inst_in eqn"),
    key=jax.lax.scan_p,
)
_MOVE_BINDERS = _for_scans(
    "jax._src.interpreters.partial_eval:move_binders_to_front",
    "Makes a scan's body that depends on the loop in all its parts.",
    signature=called_with(2),
)
_DEBUG_INFO = _for_scans(
    "jax._src.core:DebugInfo",
    "Names the operands of the part of a scan's body that does not.",
    methods={"with_unknown_names": called_with(1)},
)
_BATCH_JAXPR = private(
    "jax._src.interpreters.batching:batch_jaxpr",
    "Tells whether the predicate of a loop under vmap is batched.",
    "A loop with a batched predicate could run callbacks of finished elements.",
    ("H7", "X3"),
    Cost.SOME,
    called_with(3, "instantiate"),
)
_for_batching = functools.partial(
    private,
    without="Under vmap, a cond or while_loop could run callbacks of elements that should not run them.",
    promises=("H7", "X3"),
    cost=Cost.EFFECTS,
)
_BATCHED_COND = _for_batching(
    "jax.interpreters.batching:fancy_primitive_batchers",
    "Stands before JAX's rule for a cond under vmap.",
    signature=called_with(3, "branches"),
    key=jax.lax.cond_p,
)
_BATCHED_WHILE = _for_batching(
    "jax.interpreters.batching:fancy_primitive_batchers",
    "Stands before JAX's rule for a while_loop under vmap.",
    signature=called_with(3, "cond_nconsts", "cond_jaxpr", "body_nconsts", "body_jaxpr"),
    key=jax.lax.while_p,
)
_LOWER_COND = private(
    "jax._src.lax.control_flow.conditionals:_cond_lowering",
    "Avoids two bugs of compilers for a cond with ordered callbacks.",
    "JAX refuses some programs with ordered callbacks in a platform_dependent, and XLA some with them in a cond.",
    ("H4",),
    Cost.SOME,
    called_with(2, "branches"),
)
_LOWER_WHILE = private(
    "jax._src.lax.control_flow.loops:_while_lowering",
    "Keeps XLA from dropping unordered callbacks in the condition of a loop whose number of steps it knows.",
    "An unordered callback in the condition of a while_loop could be dropped.",
    ("H4", "X3"),
    Cost.SOME,
    called_with(1, "cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts"),
)

# JAX's own rules, which hostcb's rules call; None if this JAX has them in a way unknown to hostcb.
lower_cond: Callable[..., Any] | None = _LOWER_COND.value
lower_while: Callable[..., Any] | None = _LOWER_WHILE.value


def stand_before_batching(batch_cond: Callable[..., Any], batch_while: Callable[..., Any]) -> None:
    """Replace JAX's rules that batch `cond` and `while_loop` by these, which get JAX's rule as their first argument."""
    for entry, batch in ((_BATCHED_COND, batch_cond), (_BATCHED_WHILE, batch_while)):
        if entry.holds:
            entry.put(with_first(batch, entry.value))


def watch_conditions(
    with_refs: Callable[[Any], bool], refuse: Callable[[Any], None], without_token: Callable[[Any], bool]
) -> None:
    """Watch the conditions of loops for callbacks that could see old values, or that XLA could drop.

    When JAX discharges mutable arrays to values, it gives the condition and the body one array each. A condition that
    uses a mutable array which the body changes therefore always sees the first value. `refuse` is called for such a
    condition if `with_refs(condition)`. If JAX discharges in a way unknown to hostcb, each condition that uses mutable
    arrays and has `with_refs(condition)` is refused. If JAX lowers loops in a way unknown to hostcb, each condition
    with `without_token(condition)` is refused.
    """
    unknown = first_lost(_DISCHARGE, _REF_EFFECT, _READ_EFFECT)
    if unknown is None:
        _watch_loops_with_refs(with_refs, refuse)
    if unknown is None and _LOWER_WHILE.holds:
        return
    plain = jax.lax.while_p.abstract_eval

    def abstract_eval(*avals: Any, **params: Any) -> Any:
        condition = params["cond_jaxpr"]
        if unknown is not None and with_refs(condition) and any(_is_ref(aval) for aval in _avals_in(condition)):
            raise unknown.refusal("a host callback in the condition of a while_loop with mutable arrays")
        if _LOWER_WHILE.lost and without_token(condition):
            raise _LOWER_WHILE.refusal("an unordered host callback in the condition of a while_loop")
        return plain(*avals, **params)

    jax.lax.while_p.def_effectful_abstract_eval(abstract_eval)


def _avals_in(jaxpr: Any) -> list[Any]:
    return [variable.aval for variable in getattr(jaxpr, "jaxpr", jaxpr).invars]


def _is_ref(aval: Any) -> bool:
    # Does not need the types of mutable arrays, which this JAX may lack.
    return not isinstance(aval, (jax.core.ShapedArray, AbstractToken))


def _watch_loops_with_refs(concerns: Callable[[Any], bool], refuse: Callable[[Any], None]) -> None:
    plain = _DISCHARGE.value

    def rule(*args: Any, **params: Any) -> Any:
        if not concerns(params["cond_jaxpr"]):
            return plain(*args, **params)
        avals = args[0].in_avals if hasattr(args[0], "in_avals") else args[1]
        body = getattr(params["body_jaxpr"], "jaxpr", params["body_jaxpr"])
        of_body = dict(zip(body.invars, avals[params["cond_nconsts"] :], strict=True))
        changed = [
            of_body.get(effect.input)
            for effect in body.effects
            if isinstance(effect, _REF_EFFECT.value) and not isinstance(effect, _READ_EFFECT.value)
        ]
        # Each mutable array has a type of its own.
        if any(aval is each for aval in avals[: params["cond_nconsts"]] for each in changed):
            refuse(params["cond_jaxpr"])
        return plain(*args, **params)

    _DISCHARGE.put(rule)


def keep_in_scans(belongs: Callable[[Any], bool]) -> None:
    """Keep loop-invariant equations in a differentiated `scan` if `belongs` is true for their jaxpr.

    When JAX splits a scan for its derivative, it evaluates loop-invariant equations once before the loop. Callbacks
    without operands are such equations, and JAX has no rule by which a primitive could opt out. If JAX splits scans in
    a way unknown to hostcb, differentiated scans with such equations are refused.
    """
    unknown = first_lost(_HOISTING, _SPLITTING, _SCAN_IN_CHECKPOINT, _MOVE_BINDERS, _DEBUG_INFO)
    if unknown is not None:
        _refuse_differentiated_scans(belongs, unknown)
        return
    plain, split, plain_rule = _HOISTING.value, _SPLITTING.value, _SCAN_IN_CHECKPOINT.value

    def hoisting(jaxpr_known: Any, known_consts: Sequence[Any], *counts: int, **named: int) -> Any:
        if belongs(jaxpr_known):
            residuals = (*counts, *named.values())[0]
            return jaxpr_known, known_consts, [False] * residuals, []
        return plain(jaxpr_known, known_consts, *counts, **named)

    # In a `checkpoint`, the rule for scans splits the body with a function that other rules call, too.
    in_rule: contextvars.ContextVar[bool] = contextvars.ContextVar("hostcb_scan_is_split", default=False)

    def rule(*args: Any, **kwargs: Any) -> Any:
        reset = in_rule.set(True)
        try:
            return plain_rule(*args, **kwargs)
        finally:
            in_rule.reset(reset)

    def splitting(jaxpr: Any, unknowns: Sequence[bool], *others: Any, **named: Any) -> Any:
        if in_rule.get() and belongs(jaxpr):
            return _all_depends_on_the_loop(jaxpr, unknowns)
        return split(jaxpr, unknowns, *others, **named)

    _HOISTING.put(hoisting)
    _SCAN_IN_CHECKPOINT.put(rule)
    _SPLITTING.put(splitting)


def _refuse_differentiated_scans(belongs: Callable[[Any], bool], unknown: Any) -> None:
    def refusing(plain: Callable[..., Any]) -> Callable[..., Any]:
        def rule(*args: Any, **params: Any) -> Any:
            if belongs(params["jaxpr"]):
                raise unknown.refusal("a host callback in a scan or fori_loop that is differentiated")
            return plain(*args, **params)

        return rule

    if JVPS.holds:
        set_rule(JVPS, jax.lax.scan_p, refusing(JVPS.value[jax.lax.scan_p]))
    # `grad` looks for a rule in this table before it looks for the jvp rule.
    linearize = private(
        "jax._src.interpreters.ad:primitive_linearizations",
        "Refuses callbacks in scans that are differentiated, where JAX splits these in a way unknown to hostcb.",
        _HOISTED,
        ("H4", "X3"),
        Cost.EFFECTS,
        key=jax.lax.scan_p,
    )
    if linearize.holds:
        linearize.put(refusing(linearize.value))


def _all_depends_on_the_loop(jaxpr: Any, unknown: Sequence[bool]) -> tuple[Any, Any, list[bool], list[Any]]:
    """Split a scan's body into a known part that only returns its operands, and an unknown part with all equations."""
    known = [aval for aval, is_unknown in zip(jaxpr.in_avals, unknown, strict=True) if not is_unknown]
    nothing = jax.make_jaxpr(lambda *operands: operands)(*known)
    # JAX builds another jaxpr from this one and names its operands by their number, so these operands have no names.
    names = nothing.jaxpr.debug_info.with_unknown_names()
    nothing = nothing.replace(jaxpr=nothing.jaxpr.replace(debug_info=names))
    everything = _MOVE_BINDERS.value(jaxpr, [not is_unknown for is_unknown in unknown])
    return nothing, everything, [True] * len(jaxpr.out_avals), known


def predicate_is_batched(
    axis_data: Any, dims: Sequence[Any], cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any
) -> bool:
    """Whether the predicate of a while_loop is batched after all carries that the body makes batched are batched."""
    if _BATCH_JAXPR.lost:
        raise _BATCH_JAXPR.refusal("a host callback in a while_loop under vmap")
    batch_jaxpr = _BATCH_JAXPR.value
    batched = [dim is not None for dim in dims]
    of_condition, of_body = batched[:cond_nconsts], batched[cond_nconsts : cond_nconsts + body_nconsts]
    carry = batched[cond_nconsts + body_nconsts :]
    while True:
        _, out = batch_jaxpr(body_jaxpr, axis_data, of_body + carry, instantiate=carry)
        grown = [was or now for was, now in zip(carry, out, strict=True)]
        if grown == carry:
            break
        carry = grown
    _, (predicate,) = batch_jaxpr(cond_jaxpr, axis_data, of_condition + carry, instantiate=False)
    return bool(predicate)
