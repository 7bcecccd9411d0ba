"""Operations on values: on NumPy, lane by lane, and with the derivatives that go through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .description import MODULUS, WIDTH
from .expected import UnjudgedError, UnknownOperationError
from .numeric import OPERATIONS, PULLBACKS, TRANSPOSED, WHOLE, loses_derivatives
from .values import (
    Derivative,
    Entry,
    Flags,
    Plain,
    Traced,
    Value,
    axes_of,
    below,
    innermost,
    lanes_of,
    perhaps,
    plain,
    tangent_of,
    union,
    without,
)

LARGEST = 2**20
"""Larger numbers, which only derivatives have, could be rounded in float32."""


class Exchange(Protocol):
    """How the devices' interpreters meet in a collective."""

    def __call__(self, device: int, array: Any) -> list[Any]:
        """The arrays of all devices."""


class Arithmetic:
    def __init__(self, device: int, exchange: Exchange) -> None:
        self.device = device
        self.exchange = exchange
        self.depth = 0
        """The number of vmaps around."""
        self.derivatives: list[Derivative] = []
        """Those that are being taken, the outermost first."""

    def constant(self, value: Any) -> Plain:
        array = np.asarray(value)
        return Plain(np.broadcast_to(array, (WIDTH,) * self.depth + array.shape))

    def operation(self, name: str, params: Any, operands: Sequence[Value]) -> Value:
        if loses_derivatives(name, params):
            operands = [plain(one) for one in operands]
        derivative = innermost(operands)
        if derivative is None:
            return self._plain(name, params, [plain(one) for one in operands])
        lower = [below(one, derivative) for one in operands]
        result = Traced(derivative, self.operation(name, params, lower))
        if derivative.forward:
            result.tangent = self._pushed(name, params, lower, [tangent_of(one, derivative) for one in operands])
            return result
        wanted = [isinstance(one, Traced) and one.derivative is derivative for one in operands]
        self.record(
            derivative,
            [result],
            operands,
            lambda slopes: self._pulled(name, params, lower, wanted, slopes[0]),
            # The other devices wait in a collective.
            always=name in _COLLECTIVES,
        )
        return result

    def record(
        self, derivative: Derivative, results: Any, operands: Sequence[Value], pullback: Any, always: bool = False
    ) -> None:
        derivative.entries.append(Entry(results, operands, pullback, self.depth, always))

    def _plain(self, name: str, params: Any, operands: Sequence[Plain]) -> Plain:
        arrays, lanes = [one.array for one in operands], union(one.flags for one in operands)
        if name in WHOLE:
            axis = params.get("axis", 0)
            left = without(lanes, [axis])
            lanes = {"vary": lanes | {axis}, "leave": left, "sum_lanes": left}.get(name, lanes)
            found = WHOLE[name](axis, arrays[0])
            lanes = params["lanes"] if name == "relane" else lanes
        elif name in _COLLECTIVES:
            found = self._collective(name, params, arrays[0])
        elif name not in OPERATIONS:
            raise UnknownOperationError(f"the oracle does not know {name!r}: add it to fuzz/numeric.py")
        elif not self.depth:
            found = np.asarray(OPERATIONS[name](params, *arrays))
        else:
            around = (WIDTH,) * self.depth
            flat = [one.reshape((-1, *one.shape[self.depth :])) for one in arrays]
            each = [OPERATIONS[name](params, *(one[lane] for one in flat)) for lane in range(WIDTH**self.depth)]
            stacked = np.stack(each)
            found = stacked.reshape((*around, *stacked.shape[1:]))
        if np.issubdtype(found.dtype, np.floating) and np.abs(found).max(initial=0) > LARGEST:
            raise UnjudgedError("a derivative is too large for exact sums")
        return Plain(found, lanes)

    def _collective(self, name: str, params: Any, array: Any) -> Any:
        """A collective of the program, or its derivative, which does not wrap the numbers; `back` is its transpose."""
        operation, back = params["operation"], params.get("back", False)
        own = np.float32(self.device + 1) if operation == "all_gather" else np.float32(1)
        arrays = self.exchange(self.device, array if back else array * own)
        if operation == "ppermute":
            return arrays[(self.device + 1) % len(arrays)] if back else arrays[self.device - 1]
        total = np.asarray(sum(arrays[1:], arrays[0]))
        if back:
            return np.asarray(total * own, np.float32)
        return np.asarray(np.fmod(total, np.float32(MODULUS)) if name == "collective" else total, np.float32)

    # Forward mode.

    def _pushed(
        self, name: str, params: Any, operands: Sequence[Value], tangents: Sequence[Value | None]
    ) -> Value | None:
        """The tangent of a result."""
        if name in _COLLECTIVES:
            # Another device's may not be zero.
            return self.operation("linear_collective", params, [tangents[0] or self.zeros(operands[0])])
        parts = []
        for place, tangent in enumerate(tangents):
            if tangent is None:
                continue
            if name == "mul":
                parts.append(self.operation("mul", params, [tangent, operands[1 - place]]))
            elif name in WHOLE or name in ("pull", "direction"):
                parts.append(self.operation(name, params, [tangent, *operands[1:]]))
            elif name == "rem" and place:
                raise UnknownOperationError("the divisor of a remainder is a constant")
            else:
                parts.append(self._linear("direction", name, params, operands, place, tangent))
        return self.total(parts) if parts else None

    def _linear(self, which: str, name: str, params: Any, operands: Sequence[Value], place: int, moved: Value) -> Value:
        if name not in PULLBACKS:
            raise UnknownOperationError(f"the oracle does not know the derivative of {name!r}: see fuzz/numeric.py")
        # Only a choice or a place that is a whole number is read: of floats nothing but the shape.
        fixed = [
            one if one.array.dtype.kind != "f" else Plain(one.array) for one in (plain(operand) for operand in operands)
        ]
        return self.operation(which, {"of": name, "params": params, "place": place}, [moved, *fixed])

    def zeros(self, like: Value) -> Plain:
        return Plain(np.zeros_like(plain(like).array), perhaps(lanes_of(like.flags)))

    def opened(self, moved: Value, flags: Flags) -> Value:
        """A derivative: it is open whether JAX batches it by a vmap that what it is computed of has."""
        lanes = perhaps(lanes_of(flags | moved.flags))
        return self.operation("relane", {"lanes": lanes}, [moved]) if lanes else moved

    def opened_everywhere(self, moved: Value) -> Value:
        return self.opened(moved, frozenset(range(self.depth)))

    def total(self, parts: Sequence[Value]) -> Value:
        found = parts[0]
        for one in parts[1:]:
            found = self.operation("add", {}, [found, one])
        return found

    # Reverse mode.

    def _pulled(
        self, name: str, params: Any, operands: Sequence[Value], wanted: Sequence[bool], slope: Value
    ) -> list[Value | None]:
        """The cotangents of the operands."""
        if name in _COLLECTIVES:
            back = not params.get("back", False)
            return [self.operation("linear_collective", {**params, "back": back}, [slope])]
        if name in WHOLE:
            transposed = TRANSPOSED[name]
            if name == "leave" and params["axis"] not in axes_of(operands[0].flags):
                # All lanes' results are one value.
                transposed = "sum_lanes"
            return [self.operation(transposed, params, [slope])]
        if name in ("pull", "direction"):
            other = "direction" if name == "pull" else "pull"
            return [self.operation(other, params, [slope, *operands[1:]]), *(None for _ in operands[1:])]
        found: list[Value | None] = []
        for place, (one, is_wanted) in enumerate(zip(operands, wanted, strict=True)):
            if not is_wanted:
                found.append(None)
            elif name == "mul":
                part = self.operation("mul", {}, [slope, operands[1 - place]])
                if part.array.shape != one.array.shape:
                    part = self._linear("pull", "add", {}, operands, place, part)
                found.append(part)
            else:
                found.append(self._linear("pull", name, params, operands, place, slope))
        return found

    def backward(self, derivative: Derivative, seeds: Sequence[tuple[Value, Value]]) -> Slopes:
        """The cotangents of all values that the derivative goes through, from those of some."""
        slopes = Slopes(self, derivative)
        for value, slope in seeds:
            slopes.add(value, slope, value.flags, self.depth)
        for entry in reversed(derivative.entries):
            arrived = [slopes.get(result) for result in entry.results]
            if not (entry.always or any(arrived)):
                continue
            whole = [slope or self.zeros(result) for slope, result in zip(arrived, entry.results, strict=True)]
            of_results = union(one.flags for one in entry.results)
            depth, self.depth = self.depth, entry.depth
            for operand, pulled in zip(entry.operands, entry.pullback(whole), strict=True):
                if pulled is not None:
                    slopes.add(operand, pulled, of_results, entry.depth)
            self.depth = depth
        return slopes

    def flagged(self, value: Value, flags: Flags) -> Value:
        """The value with more flags, as a value that is carried through a loop has them."""
        if lanes_of(flags) - value.flags:
            value = self.operation("relane", {"lanes": lanes_of(flags | value.flags)}, [value])
        for derivative in self.derivatives:
            if derivative.flag in flags - value.flags:
                value = self._traced(value, derivative)
        return value

    def _traced(self, value: Value, derivative: Derivative) -> Value:
        """The value, traced by one more derivative, for which it is a constant."""
        if not isinstance(value, Traced) or value.derivative.level < derivative.level:
            return Traced(derivative, value)
        inner = value.derivative
        found = Traced(inner, self._traced(value.below, derivative), value.tangent)
        if not inner.forward:
            self.record(inner, [found], [value], lambda slopes: slopes)
        return found


_COLLECTIVES = ("collective", "linear_collective")


class Slopes:
    """The cotangents of one derivative's values."""

    def __init__(self, arithmetic: Arithmetic, derivative: Derivative) -> None:
        self.arithmetic = arithmetic
        self.derivative = derivative
        self.by_value: dict[int, tuple[Value, Value]] = {}

    def get(self, value: Value) -> Value | None:
        found = self.by_value.get(id(value))
        return found[1] if found else None

    def add(self, value: Value, slope: Value, of_results: Flags, depth: int) -> None:
        derivative = self.derivative
        if not isinstance(value, Traced) or value.derivative is not derivative:
            return
        arithmetic = self.arithmetic
        for axis in range(derivative.depth, depth):
            if axis in axes_of(of_results) - axes_of(value.flags):
                slope = arithmetic.operation("sum_lanes", {"axis": axis}, [slope])
        outside, inside = range(derivative.depth), range(derivative.depth, depth)
        lanes = without(lanes_of(slope.flags), inside) | without(lanes_of(value.flags), outside)
        if lanes != lanes_of(slope.flags):
            slope = arithmetic.operation("relane", {"lanes": lanes}, [slope])
        known = self.get(value)
        self.by_value[id(value)] = value, arithmetic.total([known, slope]) if known else slope
