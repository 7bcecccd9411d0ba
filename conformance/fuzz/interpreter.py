"""The oracle: an interpreter of a traced program (jaxpr) on NumPy, which runs callbacks in the order of the equations.

It goes through the program once for each device. Lanes of a vmap go in step, one by one in each operation: by contract,
a tap of a batched value is one callback with all lanes, and a branch or a loop that depends on the lane runs for all of
them. Derivatives come from a tape, so the rules of custom derivatives run their callbacks when JAX must run them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np

from . import flows
from .description import WIDTH, WITH_RESULTS
from .expected import Expected, ExpectedCall, UnjudgedError, UnknownOperationError
from .host import answer
from .numeric import OPERATIONS, PULLBACKS
from .values import DIFFERENTIATED, LANES, TANGENT, Entry, Flags, Tape, Value

_STACKED_BY_METHOD = "broadcast_all"


class Exchange(Protocol):
    """How the devices' interpreters meet in a collective."""

    def __call__(self, device: int, array: Any) -> list[Any]:
        """The arrays of all devices."""


class Interpreter:
    def __init__(self, device: int, exchange: Exchange) -> None:
        self.device = device
        self.exchange = exchange
        self.expected = Expected()
        self.in_lanes = False
        self.backwards = False
        """Whether it is in a rule of cotangents."""
        self.optional = False
        self.tape: Tape | None = None
        self.kept: list[deque[Any]] = []
        """The results of calls in each checkpoint that is around."""
        self.replayed: deque[Any] | None = None

    def run(self, program: Any, operands: Sequence[Any]) -> Expected:
        values = [Value(np.asarray(one)) for one in operands]
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

    def constant(self, value: Any) -> Value:
        array = np.asarray(value)
        return Value(np.broadcast_to(array, (WIDTH, *array.shape)) if self.in_lanes else array)

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
            "mark_custom": self.custom,
            "mark_collective": self.collective,
        }.get(name)
        if special is not None:
            return special(params, operands)
        if name not in OPERATIONS:
            raise UnknownOperationError(f"the oracle does not know {name!r}: add it to fuzz/numeric.py")
        (flags,) = flows.of_equation(equation, [one.flags for one in operands])
        return [self.simple(name, params, operands, flags)]

    def simple(self, name: str, params: Any, operands: Sequence[Value], flags: Flags) -> Value:
        arrays = [one.array for one in operands]
        if self.in_lanes:
            lanes = [OPERATIONS[name](params, *(one[lane] for one in arrays)) for lane in range(WIDTH)]
            result = Value(np.stack(lanes), flags)
        else:
            result = Value(np.asarray(OPERATIONS[name](params, *arrays)), flags)
        if self.tape and DIFFERENTIATED in flags:
            if name not in PULLBACKS:
                raise UnknownOperationError(f"the oracle does not know the derivative of {name!r}: see fuzz/numeric.py")
            self.tape.entries.append(Entry([result], operands, _pullback(name, params, operands, self.in_lanes)))
        return result

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
            parts = [self.simple("part", {"step": step}, [one], one.flags) for one in over]
            results = self.closed(params["jaxpr"], [*fixed, *carry, *parts])
            carry = [self.flagged(one, more) for one, more in zip(results, flags[:carried], strict=False)]
            for found, one in zip(stacked, results[carried:], strict=True):
                found.append(one)
        return [
            *carry,
            *(self.simple("stack", {}, found, more) for found, more in zip(stacked, flags[carried:], strict=True)),
        ]

    def flagged(self, value: Value, flags: Flags) -> Value:
        """The value with more flags, as a value that is carried through a loop has them."""
        if flags <= value.flags:
            return value
        more = Value(value.array, value.flags | flags)
        if self.tape and DIFFERENTIATED in value.flags:
            self.tape.entries.append(Entry([more], [value], lambda slopes: slopes))
        return more

    def while_loop(self, params: Any, operands: list[Value]) -> list[Value]:
        asked, bodied = params["cond_nconsts"], params["body_nconsts"]
        of_condition, of_body, carry = operands[:asked], operands[asked : asked + bodied], operands[asked + bodied :]
        if any(DIFFERENTIATED in one.flags for one in operands):
            raise UnjudgedError("JAX differentiates no loop whose trip count depends on data")
        flags, predicate = flows.of_while(params, [one.flags for one in operands])
        if LANES in predicate:
            kinds = [one.params["kind"] for one in _callbacks(params["cond_jaxpr"].jaxpr)]
            if set(kinds) - {"id_tap"}:
                raise UnjudgedError("JAX evaluates the condition of a batched loop as often as it wants")
            self.refuse_once([params["cond_jaxpr"], params["body_jaxpr"]])
        carry = [self.flagged(one, more) for one, more in zip(carry, flags, strict=True)]
        while True:
            (goes_on,) = self.closed(params["cond_jaxpr"], [*of_condition, *carry])
            if not goes_on.array.any():
                return carry
            results = self.closed(params["body_jaxpr"], [*of_body, *carry])
            carry = [
                Value(_chosen(goes_on.array, [old.array, new.array], LANES in predicate), more)
                for old, new, more in zip(carry, results, flags, strict=True)
            ]

    def cond(self, params: Any, operands: list[Value]) -> list[Value]:
        index, branches = operands[0], params["branches"]
        flags = flows.of_branches(branches, [one.flags for one in operands])
        if LANES not in index.flags:
            which = min(max(int(index.array.flat[0]), 0), len(branches) - 1)
            results = self.closed(branches[which], operands[1:])
            return [self.flagged(one, more) for one, more in zip(results, flags, strict=True)]
        self.refuse_once(branches)
        if any(DIFFERENTIATED in one.flags for one in operands) and any(
            equation.primitive.name in ("mark_custom", "remat2", "checkpoint")
            for branch in branches
            for equation in flows.equations_of(branch.jaxpr)
        ):
            raise UnjudgedError("the order of the rules in both branches of a batched cond is not promised")
        each = [self.closed(branch, operands[1:]) for branch in branches]
        whole = Value(np.clip(index.array, 0, len(branches) - 1), index.flags)
        return [
            self.simple("select_n", {}, [whole, *cases], more)
            for cases, more in zip(zip(*each, strict=True), flags, strict=True)
        ]

    def refuse_once(self, jaxprs: Sequence[Any]) -> None:
        """JAX runs both sides of what is batched, so a callback that must run exactly once is refused there."""
        if any(one.params["kind"].startswith("io_") for jaxpr in jaxprs for one in _callbacks(jaxpr.jaxpr)):
            raise UnjudgedError("an io_callback is refused where a batched predicate decides")

    # Marks.

    def vmap(self, params: Any, operands: list[Value]) -> list[Value]:
        assert not self.in_lanes
        self.in_lanes = True
        inside = []
        for one, batched in zip(operands, params["batched"], strict=True):
            array = one.array if batched else np.broadcast_to(one.array, (WIDTH, *one.array.shape))
            inside.append(Value(array, one.flags | {LANES} if batched else one.flags))
            if self.tape and DIFFERENTIATED in one.flags:
                # A cotangent that all lanes share is the sum of theirs already.
                take = (lambda slopes: slopes) if batched else (lambda slopes: [Value(slopes[0].array[0])])
                self.tape.entries.append(Entry([inside[-1]], [one], take))
        results = self.closed(params["jaxpr"], inside)
        self.in_lanes = False
        outside = []
        for one in results:
            outside.append(Value(one.array, one.flags - {LANES}))
            if self.tape and DIFFERENTIATED in one.flags:
                self.tape.entries.append(Entry([outside[-1]], [one], _back_into_lanes(one)))
        return outside

    def grad(self, params: Any, operands: list[Value]) -> list[Value]:
        assert self.tape is None
        where, operand, *others = operands
        variable = Value(operand.array, operand.flags | {DIFFERENTIATED})
        self.tape = Tape(lanes_inside=not self.in_lanes)
        (result,) = self.closed(params["jaxpr"], [where, variable, *others])
        tape, self.tape = self.tape, None
        slopes = tape.backward([(result, Value(np.ones_like(result.array)))])
        slope = slopes.get(variable) or Value(np.zeros_like(variable.array))
        return [Value(result.array, result.flags & {LANES}), Value(slope.array, slope.flags & {LANES})]

    def checkpoint(self, equation: Any, operands: list[Value]) -> list[Value]:
        jaxpr, constants = flows.inner(equation.params)
        if not any(DIFFERENTIATED in one.flags for one in operands):
            return self.jaxpr(jaxpr, constants, operands)
        if any(one.params["kind"].startswith("io_") for one in _callbacks(jaxpr)):
            raise UnjudgedError("an io_callback is refused in a checkpoint that is differentiated")
        tape, self.tape = self.tape, None
        calls: deque[Any] = deque()
        self.kept.append(calls)
        found = self.jaxpr(jaxpr, constants, operands)
        self.kept.pop()
        self.tape = tape
        results = [Value(one.array, one.flags) for one in found]
        in_lanes = self.in_lanes

        def again(slopes: Sequence[Value]) -> list[Value | None]:
            inside = [Value(one.array, one.flags) for one in operands]
            outer, self.in_lanes = self.in_lanes, in_lanes
            self.tape, replayed, self.replayed = Tape(bool(tape and tape.lanes_inside)), self.replayed, deque(calls)
            optional, self.optional = self.optional, self.optional or _only_zeros(slopes)
            once_more = self.jaxpr(jaxpr, constants, inside)
            own, self.tape, self.replayed = self.tape, None, replayed
            gathered = own.backward([*zip(once_more, slopes, strict=True)])
            self.in_lanes, self.optional = outer, optional
            return [gathered.get(one) for one in inside]

        if self.tape:
            self.tape.entries.append(Entry(results, operands, again, calls_back=True))
        return results

    def custom(self, params: Any, operands: list[Value]) -> list[Value]:
        where, operand = operands
        if DIFFERENTIATED not in operand.flags:
            return self.closed(params["jaxpr"], operands)
        tape, self.tape = self.tape, None
        plain = Value(operand.array, operand.flags & {LANES})
        in_lanes, rules = self.in_lanes, Tape(bool(tape and tape.lanes_inside))
        if params["kind"] == "CustomVjp":
            (found,) = self.closed(params["jaxpr"], [where, plain])
        else:
            tangent = Value(np.zeros_like(operand.array), operand.flags | {DIFFERENTIATED, TANGENT})
            self.tape = rules
            found, out_tangent = self.closed(params["rule"], [where, plain, tangent])
        self.tape = tape
        flags = found.flags | operand.flags
        result = Value(found.array, flags)

        def by_rule(slopes: Sequence[Value]) -> list[Value | None]:
            outer, self.in_lanes = self.in_lanes, in_lanes
            optional, self.optional = self.optional, self.optional or _only_zeros(slopes)
            backwards, self.backwards = self.backwards, True
            if params["kind"] == "CustomVjp":
                (slope,) = self.closed(params["rule"], [where, plain, Value(slopes[0].array, slopes[0].flags)])
                answered: Value | None = Value(slope.array, slope.flags & {LANES})
            else:
                answered = rules.backward([(out_tangent, slopes[0])]).get(tangent)
            self.in_lanes, self.optional, self.backwards = outer, optional, backwards
            return [None, answered]

        if self.tape:
            self.tape.entries.append(Entry([result], operands, by_rule, calls_back=True))
        return [result]

    def collective(self, params: Any, operands: list[Value]) -> list[Value]:
        (operand,) = operands
        arrays = self.exchange(self.device, operand.array)
        if params["operation"] == "psum":
            total = sum(arrays[1:], arrays[0])
        elif params["operation"] == "all_gather":
            total = sum((one * np.float32(place + 1) for place, one in enumerate(arrays)), np.zeros_like(arrays[0]))
        else:
            return [Value(np.asarray(arrays[self.device - 1]), operand.flags)]
        return [Value(np.asarray(np.fmod(total, np.float32(16)), np.float32), operand.flags)]

    def callback(self, params: Any, operands: list[Value]) -> list[Value]:
        kind, label, (first, flags) = params["kind"], params["label"], (operands[1], [one.flags for one in operands])
        all_flags = flows.union(flags)
        if TANGENT in all_flags:
            result = Value(first.array, first.flags)
            in_lanes = self.in_lanes

            def with_cotangent(slopes: Sequence[Value]) -> list[Value | None]:
                outer, self.in_lanes = self.in_lanes, in_lanes
                optional, self.optional = self.optional, self.optional or _only_zeros(slopes)
                # An integer has no cotangent.
                without_value = Value(np.zeros(np.shape(operands[0].array), jax.dtypes.float0))
                self.emit(params, [without_value, *slopes])
                self.in_lanes, self.optional = outer, optional
                return [None, slopes[0]]

            if self.tape:
                self.tape.entries.append(Entry([result], operands, with_cotangent, calls_back=True))
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
        return [Value(array, all_flags & {LANES})]

    def emit(self, params: Any, operands: Sequence[Value]) -> None:
        kind, label = params["kind"], params["label"]
        arrays = [np.array(one.array) for one in operands]
        lanes = LANES in flows.union([one.flags for one in operands])
        found = ExpectedCall(label, kind, tuple(arrays), False, self.optional)
        if not self.in_lanes:
            self.expected.calls.append(found)
            return
        if kind == "id_tap" or (lanes and params["vmap_method"] == _STACKED_BY_METHOD):
            self.expected.calls.append(replace(found, stacked=True))
            return
        each = [replace(found, leaves=tuple(one[lane] for one in arrays)) for lane in range(WIDTH)]
        if not lanes:
            # A derivative's rule may have lanes that this interpreter does not foresee.
            each = [each[0], *(replace(one, optional=True) for one in each[1:] if self.backwards)]
        self.expected.calls.extend(each)


def _callbacks(jaxpr: Any) -> list[Any]:
    return [one for one in flows.equations_of(jaxpr) if one.primitive.name == "mark_callback"]


def _only_zeros(slopes: Sequence[Value]) -> bool:
    return not any(one.array.any() for one in slopes)


def _chosen(which: Any, cases: Sequence[Any], by_lane: bool) -> Any:
    if not by_lane:
        return cases[int(which.flat[0])]
    return np.stack([cases[int(lane_which)][lane] for lane, lane_which in enumerate(which)])


def _pullback(name: str, params: Any, operands: Sequence[Value], in_lanes: bool) -> Any:
    def pull(slopes: Sequence[Value]) -> list[Value | None]:
        slope, arrays = slopes[0], [one.array for one in operands]
        flags = slope.flags | (flows.union([one.flags for one in operands]) & {LANES})
        if not in_lanes:
            found = PULLBACKS[name](params, arrays, slope.array)
            return [None if one is None else Value(np.asarray(one), flags) for one in found]
        lanes = [PULLBACKS[name](params, [one[lane] for one in arrays], slope.array[lane]) for lane in range(WIDTH)]
        return [None if one[0] is None else Value(np.stack(one), flags) for one in zip(*lanes, strict=True)]

    return pull


def _back_into_lanes(result: Value) -> Any:
    def back(slopes: Sequence[Value]) -> list[Value | None]:
        array = slopes[0].array
        if LANES not in result.flags:
            # All lanes' results are one value.
            array = np.broadcast_to(array.sum(axis=0, keepdims=True, dtype=array.dtype), array.shape)
        return [Value(array, result.flags & {LANES})]

    return back
