"""The oracle: an interpreter of a traced program (jaxpr) on NumPy, which runs callbacks in the order of the equations.

It goes through the program once for each device. Lanes of a vmap go in step, one by one in each operation: by contract,
a tap of a batched value is one callback with all lanes, and a branch or a loop that depends on the lane runs for all of
them. Forward mode goes along with the operations, and reverse mode comes from a tape, so the rules of custom
derivatives run their callbacks when JAX must run them.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from . import flows
from .arithmetic import Arithmetic, Exchange
from .description import EXACTLY_ONCE, PURE_KINDS, TOLD, WIDTH, WITH_RESULTS
from .expected import Expected, ExpectedCall, UnjudgedError, UnknownOperationError
from .host import answer
from .values import (
    Derivative,
    Plain,
    Traced,
    Value,
    axes_of,
    axes_that_differ,
    below,
    innermost,
    lanes_of,
    perhaps,
    plain,
    tangent_of,
    union,
)

_STACKED_BY_METHOD = "broadcast_all"


class Interpreter(Arithmetic):
    def __init__(self, device: int, exchange: Exchange) -> None:
        super().__init__(device, exchange)
        self.expected = Expected()
        self.in_rule = False
        """Whether it is in a rule of derivatives, which may have lanes that this interpreter does not foresee."""
        self.optional = False
        self.rules: list[tuple[Any, bool]] = []
        """The custom functions whose rules are being run, and what `optional` was outside of them."""
        self.kept: list[deque[Any]] = []
        """The results of calls in each checkpoint that is around."""
        self.replayed: deque[Any] | None = None
        self.groups = itertools.count(1)

    def run(self, program: Any, operands: Sequence[Any]) -> Expected:
        values = [Plain(np.asarray(one)) for one in operands]
        results = self.jaxpr(program.jaxpr, program.consts, values)
        self.expected.results = tuple(one.array for one in results)
        return self.expected

    # Equations.

    def jaxpr(self, jaxpr: Any, constants: Sequence[Any], operands: Sequence[Value]) -> list[Value]:
        known: dict[Any, Value] = dict(zip(jaxpr.constvars, map(self.constant, constants), strict=True))
        known.update(zip(jaxpr.invars, operands, strict=True))

        def read(variable: Any) -> Value:
            if not hasattr(variable, "val"):
                return known[variable]
            return self.constant(np.asarray(variable.val, variable.aval.dtype))

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self.equation(equation, [*map(read, equation.invars)]), strict=True))
        return [*map(read, jaxpr.outvars)]

    def closed(self, closed: Any, operands: Sequence[Value]) -> list[Value]:
        return self.jaxpr(closed.jaxpr, closed.consts, operands)

    def equation(self, equation: Any, operands: list[Value]) -> list[Value]:
        name, params = equation.primitive.name, equation.params
        if name in ("jit", "pjit", "closed_call"):
            return self.jaxpr(*flows.inner(params), operands)
        if name in ("remat2", "checkpoint"):
            return self.checkpoint(equation, operands)
        special = {
            "scan": self.scan,
            "while": self.while_loop,
            "cond": self.cond,
            "mark_callback": self.callback,
            "mark_vmap": self.vmap,
            "mark_grad": self.grad,
            "mark_jvp": self.jvp,
            "mark_custom": self.custom,
        }.get(name)
        if special is not None:
            return special(params, operands)
        return [self.operation("collective" if name == "mark_collective" else name, params, operands)]

    # Control flow.

    def scan(self, params: Any, operands: list[Value]) -> list[Value]:
        constants, carried = flows.scan_counts(params)
        fixed, carry, over = (
            operands[:constants],
            operands[constants : constants + carried],
            operands[constants + carried :],
        )
        flags = flows.of_scan(params, [one.flags for one in operands])
        carry = [self.flagged(one, more) for one, more in zip(carry, flags, strict=False)]
        stacked: list[list[Value]] = [[] for _ in flags[carried:]]
        for step in range(params["length"]):
            parts = [self.operation("part", {"step": step}, [one]) for one in over]
            results = self.closed(params["jaxpr"], [*fixed, *carry, *parts])
            carry = [self.flagged(one, more) for one, more in zip(results, flags[:carried], strict=False)]
            for found, one in zip(stacked, results[carried:], strict=True):
                found.append(one)
        return [
            *carry,
            *(
                self.flagged(self.operation("stack", {}, found), more)
                for found, more in zip(stacked, flags[carried:], strict=True)
            ),
        ]

    def while_loop(self, params: Any, operands: list[Value]) -> list[Value]:
        asked, bodied = params["cond_nconsts"], params["body_nconsts"]
        of_condition, of_body, carry = operands[:asked], operands[asked : asked + bodied], operands[asked + bodied :]
        if any(self.in_reverse(one) for one in operands):
            raise UnjudgedError("JAX differentiates no loop whose trip count depends on data")
        flags, predicate = flows.of_while(params, [one.flags for one in operands])
        by_lane = bool(lanes_of(predicate))
        if by_lane:
            kinds = {one.params["kind"] for one in _callbacks(params["cond_jaxpr"].jaxpr)}
            if kinds - set(TOLD):
                raise UnjudgedError("JAX evaluates the condition of a batched loop as often as it wants")
            if kinds and self.depth > 1:
                raise UnjudgedError("the first tap of a batched condition may lack the outer vmap")
            self.refuse_once([params["cond_jaxpr"], params["body_jaxpr"]])
        carry = [self.flagged(one, more) for one, more in zip(carry, flags, strict=True)]
        first = True
        while True:
            (goes_on,) = self.closed(params["cond_jaxpr"], [*of_condition, *carry])
            if not goes_on.array.any():
                if first:
                    self.imagine(params["body_jaxpr"], [*of_body, *carry])
                return carry
            first = False
            results = self.closed(params["body_jaxpr"], [*of_body, *carry])
            if by_lane:
                pairs = zip(carry, results, strict=True)
                results = [self.operation("select_n", {}, [plain(goes_on), old, new]) for old, new in pairs]
            carry = [self.flagged(one, more) for one, more in zip(results, flags, strict=True)]

    def cond(self, params: Any, operands: list[Value]) -> list[Value]:
        index, branches = operands[0], params["branches"]
        flags = flows.of_branches(branches, [one.flags for one in operands])
        if not axes_that_differ([index]):
            if lanes_of(index.flags) and any(
                one.params["kind"] not in PURE_KINDS for branch in branches for one in _callbacks(branch.jaxpr)
            ):
                raise UnjudgedError("whether JAX batches the predicate of a cond, a derivative, is not promised")
            which = min(max(int(index.array.flat[0]), 0), len(branches) - 1)
            inside = [self.flagged(one, one.flags | lanes_of(index.flags)) for one in operands[1:]]
            results = self.closed(branches[which], inside)
            for branch in (*branches[:which], *branches[which + 1 :]):
                self.imagine(branch, inside)
            return [self.flagged(one, more) for one, more in zip(results, flags, strict=True)]
        self.refuse_once(branches)
        if any(isinstance(one, Traced) for one in operands) and any(
            equation.primitive.name in ("mark_custom", "remat2", "checkpoint")
            for branch in branches
            for equation in flows.equations_of(branch.jaxpr)
        ):
            raise UnjudgedError("the order of the rules in both branches of a batched cond is not promised")
        inside = [self.flagged(one, one.flags | lanes_of(index.flags)) for one in operands[1:]]
        each = [self.closed(branch, inside) for branch in branches]
        whole = Plain(np.clip(index.array, 0, len(branches) - 1), index.flags)
        return [
            self.flagged(self.operation("select_n", {}, [whole, *cases]), more)
            for cases, more in zip(zip(*each, strict=True), flags, strict=True)
        ]

    def imagine(self, closed: Any, operands: Sequence[Value]) -> None:
        """What does not run: the compiler may call a pure callback of it all the same, as it moves it out of a loop."""
        if not any(one.params["kind"] in PURE_KINDS for one in _callbacks(closed.jaxpr)):
            return
        other = Interpreter(self.device, _alone)
        other.depth = self.depth
        other.closed(closed, [plain(one) for one in operands])
        pure = [replace(one, optional=True, group=0) for one in other.expected.calls if one.kind in PURE_KINDS]
        self.expected.calls.extend(pure)

    def refuse_once(self, jaxprs: Sequence[Any]) -> None:
        """JAX runs both sides of what is batched, so a callback that must run exactly once is refused there."""
        if any(one.params["kind"] in EXACTLY_ONCE for jaxpr in jaxprs for one in _callbacks(jaxpr.jaxpr)):
            raise UnjudgedError("an io_callback is refused where a batched predicate decides")

    # Marks.

    def vmap(self, params: Any, operands: list[Value]) -> list[Value]:
        axis = {"axis": self.depth}
        pairs = zip(operands, params["batched"], strict=True)
        inside = [self.operation("vary" if batched else "share", axis, [one]) for one, batched in pairs]
        self.depth += 1
        results = self.closed(params["jaxpr"], inside)
        outside = [self.operation("leave", axis, [one]) for one in results]
        self.depth -= 1
        return outside

    def derivative(self, forward: bool = False, of_rule: bool = False) -> Derivative:
        return Derivative(len(self.derivatives), self.depth, forward, of_rule)

    @contextmanager
    def taken(self, derivative: Derivative) -> Iterator[None]:
        self.derivatives.append(derivative)
        yield
        self.derivatives.pop()

    def grad(self, params: Any, operands: list[Value]) -> list[Value]:
        where, operand, *others = operands
        derivative = self.derivative()
        variable = Traced(derivative, operand)
        with self.taken(derivative):
            (result,) = self.closed(params["jaxpr"], [where, variable, *others])
        one = Plain(np.ones_like(result.array), perhaps(lanes_of(result.flags)))
        slope = self.backward(derivative, [(result, one)]).get(variable)
        found = slope or Plain(np.zeros_like(operand.array))
        return [below(result, derivative), self.opened(found, union(one.flags for one in operands))]

    def jvp(self, params: Any, operands: list[Value]) -> list[Value]:
        where, operand, *others, tangent = operands
        derivative = self.derivative(forward=True)
        with self.taken(derivative):
            (result,) = self.closed(params["jaxpr"], [where, Traced(derivative, operand, tangent), *others])
        found = tangent_of(result, derivative) or Plain(np.zeros_like(result.array))
        return [below(result, derivative), self.opened(found, union(one.flags for one in operands))]

    @staticmethod
    def in_reverse(value: Value) -> bool:
        while isinstance(value, Traced):
            if not value.derivative.forward:
                return True
            value = value.below
        return False

    def checkpoint(self, equation: Any, operands: list[Value]) -> list[Value]:
        jaxpr, constants = flows.inner(equation.params)
        if not any(self.in_reverse(one) for one in operands):
            return self.jaxpr(jaxpr, constants, operands)
        if any(one.params["kind"] in EXACTLY_ONCE for one in _callbacks(jaxpr)):
            raise UnjudgedError("an io_callback is refused in a checkpoint that is differentiated")
        derivative = innermost(operands)
        assert derivative is not None
        if any(isinstance(below(one, derivative), Traced) for one in operands):
            raise UnjudgedError("how often a checkpoint runs for derivatives of derivatives is not promised")

        def once(results_of: deque[Any] | None) -> tuple[Derivative, list[Value], list[Value]]:
            """Run it for a derivative of its own."""
            own = Derivative(derivative.level, derivative.depth)
            inside = [Traced(own, one.below) if isinstance(one, Traced) else one for one in operands]
            outer, self.derivatives = self.derivatives, [*self.derivatives[: own.level], own]
            replayed, self.replayed = self.replayed, results_of
            found = self.jaxpr(jaxpr, constants, inside)
            self.derivatives, self.replayed = outer, replayed
            return own, inside, found

        calls: deque[Any] = deque()
        self.kept.append(calls)
        own, _, found = once(self.replayed)
        self.kept.pop()
        results = [Traced(derivative, below(one, own)) if isinstance(one, Traced) else one for one in found]

        def again(slopes: Sequence[Value]) -> list[Value | None]:
            with self.needless_for(slopes):
                own, inside, once_more = once(deque(calls))
                pairs = [pair for pair in zip(once_more, results, strict=True) if isinstance(pair[1], Traced)]
                gathered = self.backward(own, [(one, slope) for (one, _), slope in zip(pairs, slopes, strict=True)])
            return [gathered.get(one) for one in inside]

        traced = [one for one in results if isinstance(one, Traced)]
        self.record(derivative, traced, operands, again, always=True)
        return results

    @contextmanager
    def needless_for(self, slopes: Sequence[Value]) -> Iterator[None]:
        """What runs here may as well not run if these are nothing but zeros."""
        optional, self.optional = self.optional, self.optional or not any(one.array.any() for one in slopes)
        yield
        self.optional = optional

    @contextmanager
    def running_rule(self, custom: Any) -> Iterator[None]:
        in_rule, self.in_rule = self.in_rule, True
        self.rules.append((custom, self.optional))
        yield
        self.rules.pop()
        self.in_rule = in_rule

    def custom(self, params: Any, operands: list[Value]) -> list[Value]:
        where, operand = operands
        derivative, custom = innermost(operands), params["custom"]
        if self.rules and self.rules[-1][0] is custom:
            # The rule may be optional. The function, which it calls, runs in any case.
            running, optional = self.rules, self.optional
            self.rules, self.optional = running[:-1], running[-1][1]
            results = self.custom(params, operands)
            self.rules, self.optional = running, optional
            return results
        if derivative is None:
            return self.closed(params["jaxpr"], operands)
        kept = below(operand, derivative)
        if custom.kind == "custom_vjp":
            return [self.with_custom_cotangent(derivative, custom, params, where, operand)]
        if derivative.forward:
            tangent = tangent_of(operand, derivative) or self.zeros(kept)
            with self.running_rule(custom), self.needless_for([tangent]):
                found, answered = self.closed(custom.traced_rule, [where, kept, self.opened_everywhere(tangent)])
            return [Traced(derivative, found, answered)]
        rules = Derivative(derivative.level, derivative.depth, of_rule=True)
        moved = Traced(rules, self.zeros(kept))
        with self.running_rule(custom):
            found, answered = self.closed(custom.traced_rule, [where, kept, moved])
        result = Traced(derivative, self.flagged(found, lanes_of(operand.flags)))

        def by_rule(slopes: Sequence[Value]) -> list[Value | None]:
            with self.running_rule(custom), self.needless_for(slopes):
                return [None, self.backward(rules, [(answered, slopes[0])]).get(moved)]

        self.record(derivative, [result], operands, by_rule, always=True)
        return [result]

    def with_custom_cotangent(
        self, derivative: Derivative, custom: Any, params: Any, where: Value, operand: Value
    ) -> Value:
        if derivative.forward:
            raise UnjudgedError("JAX refuses forward mode of a custom_vjp")
        kept = below(operand, derivative)
        (found,) = self.custom(params, [where, kept])
        result = Traced(derivative, self.flagged(found, lanes_of(operand.flags)))

        def by_rule(slopes: Sequence[Value]) -> list[Value | None]:
            with self.running_rule(custom), self.needless_for(slopes):
                (answered,) = self.closed(custom.traced_rule, [where, kept, self.opened_everywhere(slopes[0])])
            if answered.array.any() and not slopes[0].array.any():
                raise UnjudgedError("whether a rule runs for cotangents of zero, to which it gives others, is open")
            return [None, answered]

        self.record(derivative, [result], [where, operand], by_rule, always=True)
        return result

    def callback(self, params: Any, operands: list[Value]) -> list[Value]:
        kind, label, first = params["kind"], params["label"], operands[1]
        derivative = innermost(operands)
        if derivative is not None and derivative.of_rule:
            result = Traced(derivative, below(first, derivative))

            def with_cotangent(slopes: Sequence[Value]) -> list[Value | None]:
                # An integer has no cotangent.
                without_value = Plain(np.zeros(np.shape(operands[0].array), jax.dtypes.float0))
                with self.needless_for(slopes):
                    self.emit(params, [without_value, *slopes])
                return [None, slopes[0]]

            self.record(derivative, [result], operands, with_cotangent, always=True)
            return [result]
        if kind not in WITH_RESULTS:
            self.emit(params, operands)
            return [first]
        if kind == "call" and self.replayed is not None:
            array = self.replayed.popleft()
        else:
            self.emit(params, operands)
            array = answer(label, first.array)
        if kind == "call":
            for each in self.kept:
                each.append(array)
        return [Plain(array, lanes_of(union(one.flags for one in operands)))]

    def emit(self, params: Any, operands: Sequence[Value]) -> None:
        kind, label = params["kind"], params["label"]
        arrays = [np.array(one.array) for one in operands]
        lanes = sorted(axes_that_differ(operands))
        opened = self.in_rule or bool(axes_of(union(one.flags for one in operands)) - {*lanes})
        found = ExpectedCall(label, kind, tuple(arrays), 0, self.optional)
        if kind in TOLD or ((lanes or opened) and params["vmap_method"] == _STACKED_BY_METHOD):
            self.expected.calls.append(replace(found, lanes=self.depth))
            return
        # The contract has no order for the lanes of two vmaps.
        group = next(self.groups) if len(lanes) > 1 or (opened and len(lanes) < self.depth > 1) else 0
        for place in itertools.product(range(WIDTH), repeat=self.depth):
            # The first of the lanes that are alike stands for all of them.
            again = any(place[axis] for axis in range(self.depth) if axis not in lanes)
            if not again or opened:
                leaves = tuple(one[place] for one in arrays)
                self.expected.calls.append(replace(found, leaves=leaves, optional=self.optional or again, group=group))


def _alone(device: int, array: Any) -> list[Any]:
    raise UnknownOperationError("a collective where not every device comes")


def _callbacks(jaxpr: Any) -> list[Any]:
    return [one for one in flows.equations_of(jaxpr) if one.primitive.name == "mark_callback"]
