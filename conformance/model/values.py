"""Numbers of the semantic model: NumPy arrays with their vmap levels and their perturbations.

The model predicts the results of a program, with derivatives, without JAX. So its numbers carry two
things beside their data:

* *levels*: which enclosing vmaps the number varies over. The data has one leading axis per level,
  the outermost vmap first; the axes of the operand itself follow.
* *perturbations*: the coefficients of a polynomial in nilpotent infinitesimals, keyed by the set of
  infinitesimals they multiply. A derivative is exactly one coefficient, and nested derivatives need
  no further rule.

All programs of the suite treat the operand axes elementwise, so a gradient of a sum is the
derivative along the vector of ones and one infinitesimal per differentiation is enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Data: TypeAlias = npt.NDArray[Any]
Infinitesimal: TypeAlias = int
Term: TypeAlias = frozenset[Infinitesimal]

PRIMAL: Term = frozenset()

_infinitesimals = itertools.count()


def fresh_infinitesimal() -> Infinitesimal:
    return next(_infinitesimals)


def _aligned(data: Data, levels: Sequence[int], wanted: Sequence[int], rank: int) -> Data:
    """Give `data` one axis per wanted level and `rank` operand axes, new ones of size one."""
    sizes = dict(zip(levels, data.shape, strict=False))
    operand_shape = data.shape[len(levels) :]
    padding = (1,) * (rank - len(operand_shape))
    return data.reshape(tuple(sizes.get(level, 1) for level in wanted) + padding + operand_shape)


def _common(*values: Value) -> tuple[tuple[int, ...], int]:
    levels = sorted({level for value in values for level in value.levels})
    return tuple(levels), max(value.rank for value in values)


@dataclass(frozen=True)
class Value:
    """One number (or array, or batch of arrays) of the model."""

    levels: tuple[int, ...]
    terms: Mapping[Term, Data]

    @staticmethod
    def constant(number: npt.ArrayLike) -> Value:
        return Value((), {PRIMAL: np.asarray(number, dtype=np.float64)})

    @staticmethod
    def batch(level: int, offsets: Sequence[float]) -> Value:
        """A number that differs over the batch elements of one vmap."""
        return Value((level,), {PRIMAL: np.asarray(offsets, dtype=np.float64)})

    @property
    def data(self) -> Data:
        return self.terms[PRIMAL]

    @property
    def rank(self) -> int:
        return self.data.ndim - len(self.levels)

    @property
    def perturbed(self) -> bool:
        return any(term for term in self.terms)

    def primal(self) -> Value:
        return Value(self.levels, {PRIMAL: self.data})

    def perturbation(self) -> Value:
        """This number without its primal: the tangent, as a number without finite part."""
        terms = {term: data for term, data in self.terms.items() if term}
        return Value(self.levels, {PRIMAL: np.zeros_like(self.data), **terms})

    def perturb(self, infinitesimal: Infinitesimal) -> Value:
        """Move this number along the vector of ones."""
        ones = Value(
            self.levels, {PRIMAL: np.zeros_like(self.data), frozenset({infinitesimal}): np.ones_like(self.data)}
        )
        return self + ones

    def perturb_elements(self) -> tuple[Value, list[tuple[tuple[int, ...], Infinitesimal]]]:
        """Move each element by an infinitesimal of its own; the value, and the infinitesimal at each index."""
        terms = dict(self.terms)
        moved = []
        for index in np.ndindex(self.data.shape):
            infinitesimal = fresh_infinitesimal()
            terms[frozenset({infinitesimal})] = one = np.zeros_like(self.data, dtype=np.float64)
            one[index] = 1
            moved.append((index, infinitesimal))
        return Value(self.levels, terms), moved

    def derivative(self, infinitesimal: Infinitesimal) -> Value:
        """The coefficient of one infinitesimal, which may itself depend on others."""
        terms = {term - {infinitesimal}: data for term, data in self.terms.items() if infinitesimal in term}
        return Value(self.levels, {PRIMAL: np.zeros_like(self.data), **terms})

    @property
    def innermost(self) -> Infinitesimal | None:
        """The infinitesimal of the innermost derivative that perturbs this number: the latest one."""
        return max((each for term in self.terms for each in term), default=None)

    def only(self, infinitesimal: Infinitesimal) -> Value:
        """The part of this number that has the infinitesimal: its tangent, as a number without finite part."""
        terms = {term: data for term, data in self.terms.items() if infinitesimal in term}
        return Value(self.levels, {PRIMAL: np.zeros_like(self.data), **terms})

    def without(self, infinitesimal: Infinitesimal) -> Value:
        return Value(self.levels, {term: data for term, data in self.terms.items() if infinitesimal not in term})

    def __add__(self, other: Value | float) -> Value:
        other = other if isinstance(other, Value) else Value.constant(other)
        levels, rank = _common(self, other)
        both = self.terms.keys() | other.terms.keys()
        return Value(
            levels,
            {term: self._coefficient(term, levels, rank) + other._coefficient(term, levels, rank) for term in both},
        )

    def __mul__(self, other: Value | float) -> Value:
        other = other if isinstance(other, Value) else Value.constant(other)
        levels, rank = _common(self, other)
        terms: dict[Term, Data] = {}
        for (left, a), (right, b) in itertools.product(self.terms.items(), other.terms.items()):
            if left & right:
                continue  # an infinitesimal times itself is zero
            product = _aligned(a, self.levels, levels, rank) * _aligned(b, other.levels, levels, rank)
            terms[left | right] = terms[left | right] + product if left | right in terms else product
        return Value(levels, terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: Value) -> Value:
        return self + other * -1.0

    def _coefficient(self, term: Term, levels: Sequence[int], rank: int) -> Data:
        """That of a term, zero if the number has none, with these levels and operand axes."""
        return _aligned(self.terms.get(term, np.zeros_like(self.data)), self.levels, levels, rank)

    def first(self) -> Value:
        """The first element of the operand of each batch element, as a scalar, for predicates."""
        batch_shape = self.data.shape[: len(self.levels)]
        return Value(self.levels, {PRIMAL: self.data.reshape((*batch_shape, -1))[..., 0]})

    def remainder(self, divisor: float) -> Value:
        return Value(self.levels, {PRIMAL: np.remainder(self.data, divisor)})

    def less(self, other: Value) -> Value:
        levels, rank = _common(self, other)
        left = _aligned(self.data, self.levels, levels, rank)
        right = _aligned(other.data, other.levels, levels, rank)
        return Value(levels, {PRIMAL: left < right})

    def stack(self, offsets: Sequence[float]) -> Value:
        """Copies of this number along a new first operand axis, each moved by its offset."""
        axis = len(self.levels)
        column = np.asarray(offsets, dtype=np.float64).reshape((-1,) + (1,) * self.rank)
        terms = {term: np.repeat(np.expand_dims(data, axis), len(offsets), axis) for term, data in self.terms.items()}
        return Value(self.levels, terms) + Value.constant(column)

    def widen(self) -> Value:
        """This number with a last operand axis of size one."""
        return Value(self.levels, {term: data[..., np.newaxis] for term, data in self.terms.items()})

    def narrow(self) -> Value:
        """This number without its last operand axis, which has size one."""
        return Value(self.levels, {term: data[..., 0] for term, data in self.terms.items()})

    def sum_stacked(self) -> Value:
        axis = len(self.levels)
        return Value(self.levels, {term: data.sum(axis) for term, data in self.terms.items()})

    def sum_batch(self, level: int, size: int) -> Value:
        """The sum over the batch elements of one vmap; an unbatched number counts once for each."""
        if level not in self.levels:
            return self * float(size)
        axis = self.levels.index(level)
        levels = tuple(other for other in self.levels if other != level)
        return Value(levels, {term: data.sum(axis) for term, data in self.terms.items()})


def select(predicate: Value, when_true: Value, when_false: Value) -> Value:
    """Choose for each batch element."""
    levels, rank = _common(predicate, when_true, when_false)
    chosen = _aligned(predicate.data.astype(bool), predicate.levels, levels, rank)
    terms = {}
    for term in when_true.terms.keys() | when_false.terms.keys():
        branches = [branch._coefficient(term, levels, rank) for branch in (when_true, when_false)]
        terms[term] = np.where(chosen, *branches)
    return Value(levels, terms)
