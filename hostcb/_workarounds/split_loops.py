"""Callbacks of a `while_loop` that JAX splits for a derivative (H4, H6, X3).

JAX saves no values of a `while_loop`'s steps. It runs the part of the loop that depends on no tangent, and then puts
the whole loop into the derivative, callbacks included: they run twice, and because of their effects the derivative
keeps a loop that nothing needs, which cannot be transposed. hostcb puts the loop there without the callbacks that have
run. A derivative that needs the result of such a callback cannot be lowered: the callback would have to run again.

In a `checkpoint`, a loop with calls and without tangents runs once, and its results are kept, as those of a call are.

- docs/jax-bugs/while-loop-callback-repeated.md: JAX >=0.6.2
- docs/jax-bugs/remat-optimization-drops.md: JAX >=0.6.2
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

from .._compat import rules, splitting
from .._compat.extend import Primitive, Var
from .._spec.callback import HostCallback, callbacks_in
from .._spec.effects import HostCallbackEffect, OnceEffect, VisibleEffect

_EFFECTS = (HostCallbackEffect, VisibleEffect, OnceEffect)

in_loop: contextvars.ContextVar[bool] = contextvars.ContextVar("hostcb_loop_is_split", default=False)
"""Whether JAX splits the jaxprs of a `while_loop` in a checkpoint, which can save none of their values."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Ran:
    """A callback that has run: it is none of the program's any more."""

    callback: HostCallback


# Stands for a callback that has run; its result is lost.
_has_run_p = Primitive("host_callback_that_has_run")
_has_run_p.multiple_results = True
_has_run_p.def_abstract_eval(lambda *, avals, **_: avals)


def _with_effects(*jaxprs: Any) -> bool:
    return any(isinstance(effect, _EFFECTS) for jaxpr in jaxprs for effect in jaxpr.effects)


def _split(plain: Callable[..., Any], trace: Any, *tracers: Any, **params: Any) -> Any:
    if not _with_effects(params["cond_jaxpr"], params["body_jaxpr"]):
        return plain(trace, *tracers, **params)
    unknown = [not tracer.pval.is_known() for tracer in tracers]
    loop = _Loop(params, unknown)
    # JAX stages the whole loop where all or nothing is known, and where the condition is unknown.
    if any(unknown) and not all(unknown) and not loop.condition_is_unknown:
        trace = _Staging(trace, loop.without(loop.have_run(lambda callback: not callback.kind.pure), loop.carry))
    return plain(trace, *tracers, **params)


class _Staging:
    """JAX's trace, which stages the loop with other parameters. The rule for loops uses nothing else of it."""

    def __init__(self, trace: Any, params: Mapping[str, Any]) -> None:
        self._trace, self._params = trace, params

    def default_process_primitive(self, primitive: Any, tracers: Any, _: Any) -> Any:
        return self._trace.default_process_primitive(primitive, tracers, self._params)


def _split_in_checkpoint(plain: Callable[..., Any], saveable: Any, unknown: Any, instantiated: Any, loop: Any) -> Any:
    jaxprs = loop.params["cond_jaxpr"], loop.params["body_jaxpr"]
    if not any(map(_keeps_values, jaxprs)):
        return plain(saveable, unknown, instantiated, loop)
    if not any(unknown):
        nothing = [False] * len(loop.outvars)
        return loop, None, nothing, nothing, []
    reset = in_loop.set(True)
    try:
        known, staged, results, *others = plain(saveable, unknown, instantiated, loop)
    except (AssertionError, ValueError) as error:
        # What JAX raises where it would save a value: in the body, and in the condition with JAX 0.12.
        callback = next(callback for jaxpr in jaxprs for callback in callbacks_in(jaxpr))
        raise NotImplementedError(
            f"{callback}: a function with a rule for derivatives that calls back, in a while_loop in a checkpoint that "
            "is differentiated, is not supported: JAX would save its values, and can save none of a loop's steps. "
            "Apply stop_gradient to the loop's operands, or leave out the checkpoint."
        ) from error
    finally:
        in_loop.reset(reset)
    if known is None:
        return known, staged, results, *others
    split = _Loop(loop.params, unknown)
    ran = split.have_run(lambda callback: callback.kind.kept_by_checkpoint)
    params = split.without(ran, results)
    effects = _effects_of(loop, params["cond_jaxpr"], params["body_jaxpr"])
    # The results that are known are kept: the second loop has no right ones of them.
    outs = [out if is_unknown else Var(out.aval) for out, is_unknown in zip(loop.outvars, results, strict=True)]
    *_, residuals = others
    return known, staged.replace(outvars=outs, params=params, effects=effects), results, [*results], residuals


def _keeps_values(jaxpr: Any) -> bool:
    """Whether a checkpoint keeps values of a jaxpr: those of calls, and of what calls back without a rule for this."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        callback = equation.params.get("callback")
        if isinstance(callback, HostCallback) and callback.kind.kept_by_checkpoint:
            return True
        inner = [each for value in equation.params.values() for each in _jaxprs_in(value)]
        if inner and _with_effects(*inner) and not rules.has_rule(rules.CHECKPOINTS, equation.primitive):
            return True
        if any(map(_keeps_values, inner)):
            return True
    return False


class _Loop:
    """A `while_loop` some of whose operands are unknown: which carries are unknown, and which callbacks are known."""

    def __init__(self, params: dict[str, Any], unknown: Sequence[bool]) -> None:
        self._params = params
        self._condition, self._body = params["cond_jaxpr"], params["body_jaxpr"]
        of_condition, of_body = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        constants = [*unknown[of_condition:of_body]]
        self.carry = [*unknown[of_body:]]
        while True:
            self._in_body = splitting.split(self._body, constants + self.carry, self.carry)
            grown = [was or now for was, now in zip(self.carry, self._in_body[2], strict=True)]
            if grown == self.carry:
                break
            self.carry = grown
        self._in_condition = splitting.split(self._condition, [*unknown[:of_condition], *self.carry], False)

    @property
    def condition_is_unknown(self) -> bool:
        return self._in_condition[2][0]

    def have_run(self, concerns: Callable[[HostCallback], bool]) -> list[HostCallback]:
        """Those of the callbacks that run with the known part."""
        known = [callback for part in (self._in_condition, self._in_body) for callback in callbacks_in(part[0])]
        ran = [callback for callback in known if concerns(callback)]
        # A callback that the loop has more often than its known part is on an unknown value, too.
        whole = [callback for jaxpr in (self._condition, self._body) for callback in callbacks_in(jaxpr)]
        both = [each for each in ran if _count(each, whole) > _count(each, known)]
        if both:
            raise NotImplementedError(
                f"{both[0]}: one function was called back both on tangents and on other values in a while_loop that is "
                "differentiated. Give each of these callbacks a function of its own, also in jitted functions."
            )
        return ran

    def without(self, ran: Sequence[HostCallback], used: Sequence[bool]) -> dict[str, Any]:
        """The loop's parameters without these callbacks. A result in `used` may need what one of them returned."""
        condition, body = (_silenced(jaxpr, ran) for jaxpr in (self._condition, self._body))
        needed = [*used]
        condition_left, of_condition = splitting.without_unused(condition, [True])
        while True:
            body_left, of_body = splitting.without_unused(body, needed)
            carried = of_body[self._params["body_nconsts"] :]
            tested = of_condition[self._params["cond_nconsts"] :]
            grown = [any(each) for each in zip(needed, carried, tested, strict=True)]
            if grown == needed:
                break
            needed = grown
        lost = [*_that_have_run(condition_left), *_that_have_run(body_left)]
        if lost:
            condition, body = (_silenced(jaxpr, ran, lost) for jaxpr in (self._condition, self._body))
        return {**self._params, "cond_jaxpr": condition, "body_jaxpr": body}


def _is_one_of(callback: HostCallback, callbacks: Sequence[HostCallback]) -> bool:
    # Not those that are merely equal: one may be on a tangent, and another one on a primal value.
    return any(callback is each for each in callbacks)


def _count(callback: HostCallback, callbacks: Sequence[HostCallback]) -> int:
    return sum(callback is each for each in callbacks)


def _silenced(jaxpr: Any, callbacks: Sequence[HostCallback], lost: Sequence[HostCallback] = ()) -> Any:
    """A jaxpr without these callbacks: one that returns its operands is left out; the results of others are lost.

    What uses a result of those in `lost` cannot be lowered.
    """
    # A branch of a cond has the effects of all branches, also if it has no callback.
    if not _with_effects(jaxpr):
        return jaxpr
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    same: dict[Any, Any] = {}

    def read(atoms: Sequence[Any]) -> list[Any]:
        return [same.get(atom, atom) if isinstance(atom, Var) else atom for atom in atoms]

    equations = []
    for equation in inner.eqns:
        callback = equation.params.get("callback")
        operands = read(equation.invars)
        if not isinstance(callback, HostCallback):
            params = {name: _silenced_in(value, callbacks, lost) for name, value in equation.params.items()}
            jaxprs = [each for value in params.values() for each in _jaxprs_in(value)]
            effects = _effects_of(equation, *jaxprs) if jaxprs else equation.effects
            equations.append(equation.replace(invars=operands, params=params, effects=effects))
        elif not _is_one_of(callback, callbacks):
            equations.append(equation.replace(invars=operands))
        elif callback.kind.identity:
            same.update(zip(equation.outvars, operands, strict=True))
        elif equation.outvars:
            avals = tuple(variable.aval for variable in equation.outvars)
            params = {"avals": avals, "ran": _Ran(callback), "lost": _is_one_of(callback, lost)}
            equations.append(equation.replace(primitive=_has_run_p, invars=[], params=params, effects=set()))
    effects = _effects_of(inner, *equations)
    silent = inner.replace(eqns=equations, outvars=read(inner.outvars), effects=effects)
    return silent if inner is jaxpr else jaxpr.replace(jaxpr=silent)


def _silenced_in(value: Any, *callbacks: Sequence[HostCallback]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_silenced_in(each, *callbacks) for each in value)
    return _silenced(value, *callbacks) if _is_jaxpr(value) else value


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _jaxprs_in(value: Any) -> Iterator[Any]:
    yield from (each for each in (value if isinstance(value, (tuple, list)) else (value,)) if _is_jaxpr(each))


def _effects_of(changed: Any, *inner: Any) -> set[Any]:
    """The effects of what has these parts now: of hostcb's effects only theirs."""
    of_others = {effect for effect in changed.effects if not isinstance(effect, _EFFECTS)}
    return of_others | {effect for each in inner for effect in each.effects if isinstance(effect, _EFFECTS)}


def _that_have_run(jaxpr: Any) -> Iterator[HostCallback]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive is _has_run_p:
            yield equation.params["ran"].callback
        for value in equation.params.values():
            for inner in _jaxprs_in(value):
                yield from _that_have_run(inner)


def _results(*, avals: Sequence[Any], ran: _Ran, lost: bool) -> list[Any]:
    if lost:
        raise NotImplementedError(
            f"{ran.callback}: IO effect not supported in a while_loop whose derivative needs the callback's result: "
            "JAX saves no values of the loop's steps, so the callback would run again. Use lax.scan, or fori_loop with "
            "bounds that are Python integers, or stop_gradient on the loop's operands."
        )
    return [jnp.zeros(aval.shape, aval.dtype) for aval in avals]


_has_run_p.def_impl(_results)
rules.register_lowering(_has_run_p, mlir.lower_fun(_results, multiple_results=True))
splitting.stand_before_splitting(_with_effects, _split, _split_in_checkpoint)
splitting.keep_forward_rules(_with_effects)
