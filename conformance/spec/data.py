"""Data kinds: the operands and results of callbacks in programs that use more than one plain number.

A kind is a type of elements, a shape and a structure. One expression turns a program's number into an
operand. JAX evaluates it in the program, and NumPy evaluates it in the semantic model. All values are
exact: the programs' numbers are multiples of a half, and moduli are powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Tree: TypeAlias = Any

KEY_WORDS = 2
"""The number of uint32 words in a key of JAX's default generator."""

SECOND_WORD = 7


@dataclass(frozen=True)
class ElementType:
    """How a number becomes an element: its remainder by `modulus`, if there is one, plus `shift`."""

    name: str
    modulus: float | None = None
    shift: int | float = 0
    """An offset that moves the numbers out of the range of narrower types."""
    wide: bool = False
    """Whether it needs 64 bits."""
    key: bool = False
    """Whether elements are pairs of words of a pseudo-random key."""

    @property
    def dtype(self) -> np.dtype[Any]:
        name = "uint32" if self.key else self.name
        return np.dtype(getattr(ml_dtypes, name, name))

    @property
    def inexact(self) -> bool:
        """Whether JAX differentiates with respect to it."""
        return "float" in self.name or "complex" in self.name

    def elements(self, numbers: Any, increment: int, numpy_like: Any) -> Any:
        """The elements for an array of whole numbers, after a host function has added `increment`."""
        if self.modulus is not None:
            numbers = numpy_like.mod(numbers + (increment if self.name == "bool" else 0), np.float32(self.modulus))
        if self.name == "bool":
            return numbers > 0
        if self.key:
            words = (numbers + np.float32(increment), 0 * numbers + np.float32(SECOND_WORD + increment))
            return numpy_like.stack(words, axis=-1).astype(self.dtype)
        if "complex" in self.name:
            imaginary = (numbers + np.float32(1)).astype(self.dtype) * self.dtype.type(1j)
            return numbers.astype(self.dtype) + self.dtype.type(increment) + imaginary
        if self.dtype.itemsize == 1:
            # Some platforms cannot add in these types.
            return (numbers + np.float32(increment + self.shift)).astype(self.dtype)
        return numbers.astype(self.dtype) + np.asarray(self.shift + increment, self.dtype)

    def incremented(self, leaf: Any, increment: int) -> Any:
        """The host function: add `increment` to a leaf of the operand."""
        if self.name == "bool":
            return np.asarray(leaf ^ bool(increment % 2))
        result = np.asarray(leaf + np.asarray(increment, self.dtype))
        if self.inexact:
            # A sum has no negative zero, so the function returns the one that it gets.
            np.copyto(result, leaf, where=np.signbit(leaf.real) & (leaf == 0))
        return result


ELEMENT_TYPES = {
    element.name: element
    for element in (
        ElementType("float32"),
        ElementType("bool", 2),
        ElementType("int4", 4, -3),
        ElementType("int8", 128, -64),
        ElementType("uint8", 128, 120),
        ElementType("int16", 2**14, -(2**15)),
        ElementType("uint16", 2**14, 2**15),
        ElementType("int32", shift=2**30),
        ElementType("uint32", shift=2**31),
        ElementType("float16", 1024),
        ElementType("bfloat16", 128),
        ElementType("float8_e4m3fn", 8),
        ElementType("complex64"),
        ElementType("int64", shift=2**40, wide=True),
        ElementType("uint64", shift=2**63, wide=True),
        ElementType("float64", shift=2.0**-26, wide=True),
        ElementType("complex128", wide=True),
        ElementType("typed_key", key=True),
        ElementType("raw_key", key=True),
    )
}

REPRESENTATIVES = ("float32", "bool", "int4", "float8_e4m3fn", "complex64", "int64", "typed_key")
"""An element type of each sort, for the covering rows of a run without `--full`. The cases
`dtypes` and `all_64_bits` have all types."""

SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "vector": (3,),
    "matrix": (2, 3),
    "rank5": (1, 2, 1, 3, 1),
    "empty": (2, 0, 3),
    # Several KiB of each type, also of the smallest.
    "large": (131, 67),
}

NEGATIVE_ZERO = 1
"""The place of a zero with a sign among the elements of a leaf of floats, if the leaf has several."""


@dataclass(frozen=True)
class Structure:
    """The number of leaves, and the tree that holds them."""

    name: str
    leaves: int
    build: Callable[[Sequence[Any]], Tree]
    """The operand's tree of these leaves."""
    results: tuple[int, ...] | None = None
    """The leaf from which each result is made; by default each leaf, in a tree like the operand's."""
    spread: bool = False
    """Whether each leaf is a separate operand, if a callback takes several."""

    @property
    def has_carrier(self) -> bool:
        """Whether the first leaf is the program's own number."""
        return self.leaves > 1


def _nested(leaves: Sequence[Any]) -> Tree:
    first, second, third = leaves
    return {"a": {"inner": (first, [second])}, "b": None, "c": third, "d": ()}


STRUCTURES: dict[str, Structure] = {
    structure.name: structure
    for structure in (
        Structure("one", 1, lambda leaves: leaves[0]),
        Structure("pair", 2, tuple),
        Structure("list", 3, list),
        Structure("dict", 2, lambda leaves: {"value": leaves[0], "zebra": leaves[1]}),
        Structure("nested", 3, _nested),
        Structure("many", 8, tuple, spread=True),
        Structure("fewer_results", 3, tuple, results=(0,), spread=True),
        Structure("more_results", 2, tuple, results=(0, 1, 1, 1)),
    )
}


@dataclass(frozen=True)
class DataKind:
    """A type of elements, a shape and a structure, by their names."""

    element: str = "float32"
    shape: str = "scalar"
    structure: str = "one"

    @property
    def name(self) -> str:
        return "-".join((self.element, self.shape, self.structure))

    @property
    def plain(self) -> bool:
        """Whether this is the program's plain number."""
        return self is PLAIN or self == PLAIN

    @property
    def tells_apart(self) -> bool:
        """Whether the operand identifies its callback: it has at least one element."""
        return self.of_structure.has_carrier or prod(SHAPES[self.shape]) > 0

    @property
    def differentiable(self) -> bool:
        """Whether a derivative with respect to the program's number reaches the callback."""
        return self.of_structure.has_carrier or self.of_element.inexact

    @property
    def has_negative_zero(self) -> bool:
        """Whether its leaves have one."""
        return self.of_element.inexact and prod(SHAPES[self.shape]) > NEGATIVE_ZERO

    @property
    def of_element(self) -> ElementType:
        return ELEMENT_TYPES[self.element]

    @property
    def of_structure(self) -> Structure:
        return STRUCTURES[self.structure]

    def operand(self, value: Any, numpy_like: Any) -> list[Any]:
        """The leaves of the operand for a number, or for an array of numbers."""
        return [self._leaf(number, value, 0, numpy_like) for number in range(self.of_structure.leaves)]

    def results(self, value: Any, numpy_like: Any) -> list[Any]:
        """The leaves of the result of a host function that returns `incremented`."""
        return [self._leaf(source, value, by, numpy_like) for source, by in self.result_sources()]

    def result_tree(self, leaves: Sequence[Any]) -> Tree:
        structure = self.of_structure
        if structure.results is None:
            return structure.build(leaves)
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    def incremented(self, leaves: Sequence[Any]) -> list[Any]:
        """The host function: each result is a leaf of the operand plus a number that differs between results."""
        return [self._element(source).incremented(leaves[source], by) for source, by in self.result_sources()]

    def result_sources(self) -> list[tuple[int, int]]:
        """For each result, the leaf of the operand from which it is made, and its increment."""
        structure = self.of_structure
        if structure.results is None:
            return [(source, 1) for source in range(structure.leaves)]
        return [(source, 1 + structure.results[:place].count(source)) for place, source in enumerate(structure.results)]

    def _element(self, number: int) -> ElementType:
        carrier = number == 0 and self.of_structure.has_carrier
        return ELEMENT_TYPES["float32"] if carrier else self.of_element

    def _leaf(self, number: int, value: Any, increment: int, numpy_like: Any) -> Any:
        if number == 0 and self.of_structure.has_carrier:
            return numpy_like.asarray(value + np.float32(increment)).astype(np.float32)
        shape = SHAPES[self.shape]
        # Every element of every leaf has a different number.
        index = np.arange(prod(shape), dtype=np.float32).reshape(shape) + np.float32(3 * number)
        numbers = value.reshape(value.shape + (1,) * len(shape)) * np.float32(2) + index
        elements = self.of_element.elements(numbers, increment, numpy_like)
        if not self.has_negative_zero:
            return elements
        place = np.arange(prod(shape)).reshape(shape) == NEGATIVE_ZERO
        zero = complex(-0.0, -0.0) if "complex" in self.element else -0.0
        return numpy_like.where(place, np.asarray(zero, elements.dtype), elements)


PLAIN = DataKind()

EXACT = DataKind(shape="large")
"""Several KiB of numbers with a negative zero: each callback has it once, whatever rows are drawn."""


def flatten(tree: Tree) -> list[Any]:
    """The leaves of a tree of tuples, lists and dicts, in JAX's order, without JAX."""
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return [leaf for key in sorted(tree) for leaf in flatten(tree[key])]
    if isinstance(tree, (tuple, list)):
        return [leaf for branch in tree for leaf in flatten(branch)]
    return [tree]


def skeleton(tree: Tree) -> str:
    """The tree without its leaves, as readable text that can be compared."""
    if tree is None:
        return "None"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {skeleton(tree[key])}" for key in sorted(tree)) + "}"
    if isinstance(tree, (tuple, list)):
        brackets = "()" if isinstance(tree, tuple) else "[]"
        return brackets[0] + ", ".join(skeleton(branch) for branch in tree) + brackets[1]
    return "*"


def printed(function: str, array: Any) -> str:
    """How a callback that prints writes an array."""
    # The contract promises this threshold for id_print; other functions use Python's own formatting.
    return np.array2string(array, threshold=1024) if function == "id_print" else f"{array}"


def parse_data(name: str) -> DataKind | None:
    """The kind of this name, or None."""
    element, _, rest = name.partition("-")
    shape, _, structure = rest.partition("-")
    known = element in ELEMENT_TYPES and shape in SHAPES and structure in STRUCTURES
    return DataKind(element, shape, structure) if known else None
