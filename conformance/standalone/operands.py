"""The source of operands, results and host functions, for each kind of data.

The functions have the same names in each program: `operand(x)` if the data is not plain, `right(x)` for the results
that the program computes itself, and `host`, which records its operand and returns the result.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..implementations.payloads import payload_of
from ..spec.callbacks import RETURNED_OFFSET, Callback
from ..spec.data import NEGATIVE_ZERO, SHAPES, DataKind, ElementType, printed

CHECKSUM_FROM = 24
"""Leaves with more elements are compared by a checksum: a bug report has no room for their elements."""


class Code(str):
    """Source text that stands in a tree of Python: the `repr` of the tree is then source, too."""

    def __repr__(self) -> str:
        return str(self)


def text_of(function: Callable[..., Any]) -> str:
    """A function of the suite as a part of a program."""
    return re.sub("  # type: ignore.*", "", inspect.getsource(function)).strip()


class Shown:
    """How a program shows an operand in its list of calls, and how the expected operand is written."""

    def __init__(self, data: DataKind, exact_types: bool, leaves: Sequence[np.ndarray[Any, Any]]) -> None:
        self.numbers = data.plain and not exact_types
        """Whether a number without its type says everything."""
        self.checksum = any(leaf.size > CHECKSUM_FROM for leaf in leaves)

    @property
    def source(self) -> str:
        """The function `show`, or nothing where a call shows numbers."""
        if self.numbers:
            return ""
        what = "crc32 {zlib.crc32(leaf.tobytes())}" if self.checksum else "{leaf.tolist()}"
        return f'''\
def show(leaf):
    leaf = np.asarray(leaf)
    return f"{{leaf.dtype}}{{list(leaf.shape)}} {what}"'''

    def of(self, operand: str, tree: bool) -> str:
        """The source that shows an operand, which may be a tree."""
        if tree:
            return f"jax.tree.map({'lambda leaf: np.asarray(leaf).tolist()' if self.numbers else 'show'}, {operand})"
        return f"np.asarray({operand}).tolist()" if self.numbers else f"show({operand})"

    def leaf(self, leaf: np.ndarray[Any, Any]) -> Any:
        """The literal of an expected leaf."""
        if self.numbers:
            return leaf.tolist()
        names: dict[str, Any] = {}
        exec(f"import zlib\nimport numpy as np\n{self.source}", names)
        return names["show"](leaf)


def data_source(data: DataKind) -> str:
    """The functions that make operands and results of a program's number."""
    structure = data.of_structure
    carried = structure.has_carrier
    operand = structure.build([_leaf(number, 0, carried) for number in range(structure.leaves)])
    right = data.result_tree([_leaf(source, by, carried) for source, by in data.result_sources()])
    return f"""\
{_leaf_source(data)}

def operand(x):
    return {operand!r}

def right(x):
    return {right!r}

def types(x):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), right(x))"""


def _leaf(number: int, increment: int, carried: bool) -> Code:
    if carried and number == 0:
        return Code(f"x + {increment}" if increment else "x")
    return Code(f"leaf(x, {number}, {increment})")


def _leaf_source(data: DataKind) -> str:
    shape = SHAPES[data.shape]
    if shape:
        index = f"np.arange({prod(shape)}, dtype=np.float32).reshape({shape})"
        numbers = f"x[{', '.join(('...', *['None'] * len(shape)))}] * 2 + {index} + 3 * number"
    else:
        numbers = "x * 2 + 3 * number"
    elements = _elements(data.of_element)
    if data.has_negative_zero:
        zero = "complex(-0.0, -0.0)" if "complex" in data.element else "-0.0"
        place = f"np.arange({prod(shape)}).reshape({shape}) == {NEGATIVE_ZERO}"
        elements = f'jnp.where({place}, np.asarray({zero}, "{data.element}"), {elements})'
    return f"""\
def leaf(x, number, increment):
    x = jnp.asarray(x)
    numbers = {numbers}
    return {elements}"""


def _elements(element: ElementType) -> str:
    """The source of `ElementType.elements`."""
    dtype, shift = f'"{element.name}"', f" {'+-'[element.shift < 0]} {abs(element.shift)}" if element.shift else ""
    numbers = "numbers" if element.modulus is None else f"jnp.mod(numbers, {element.modulus:g})"
    if element.name == "bool":
        return f"jnp.mod(numbers + increment, {element.modulus:g}) > 0"
    if element.key:
        words = 'jnp.stack((numbers + increment, 0 * numbers + 7 + increment), axis=-1).astype("uint32")'
        return f"jax.random.wrap_key_data({words})" if element.name == "typed_key" else words
    if "complex" in element.name:
        return f"numbers.astype({dtype}) + increment + (numbers + 1).astype({dtype}) * 1j"
    if element.dtype.itemsize == 1:
        return f"({numbers} + (increment{shift})).astype({dtype})"
    return f"{numbers}.astype({dtype}) + np.asarray(increment{shift}, {dtype})"


CHECKED = """\
def checked(number, result, right):
    leaves = zip(jax.tree.leaves(result), jax.tree.leaves(right), strict=True)
    return number + 1024 * jax.lax.stop_gradient(sum(mismatches(*pair, jnp.ndim(number)) for pair in leaves))"""
"""The function that compares a result, and moves the program's number by each wrong element."""


def host_source(
    callback: Callback, data: DataKind, shown: Shown, further: Sequence[str], name: str, batched: bool = False
) -> str:
    """The host function: it records a call, and returns the operand plus one if the callback has a result."""
    spread = payload_of(callback, data).spread
    operand = "operands" if spread else "x"
    tree = callback.takes_tree or data.of_structure.leaves > 1
    parameters = ", ".join(("site", f"*{operand}" if spread else operand, *further))
    recorded = ["device.id" if parameter == "device" else f"*{parameter}" for parameter in further]
    call = f"({', '.join(('site', shown.of(operand, tree), *recorded))})"
    returns = callback.returns_new_value and callback.function != "id_tap"
    value = f'{operand}["value"]' if callback.takes_tree else operand
    moved = ["    x, transforms = in_order(x, transforms)"] if batched else []
    answer = _answer(value, data) if returns else ()
    return "\n".join((f"def {name}({parameters}):", *moved, f"    calls.append({call})", *answer))


IN_ORDER = """\
def in_order(x, transforms):
    # JAX's rules decide where each vmap has its axis: here that of the outermost one is the first.
    leaves, tree = jax.tree.flatten(x)
    batches = [entry["batch_dims"] for name, entry in transforms if name == "batch"]
    leaves = [moved(leaf, [dims[number] for dims in batches]) for number, leaf in enumerate(leaves)]
    return jax.tree.unflatten(tree, leaves), at_the_front(transforms)"""


def _answer(value: str, data: DataKind) -> list[str]:
    if data.plain:
        return [f"    return np.asarray({value} + np.float32({RETURNED_OFFSET:g}))"]
    results = [Code(f"plus({source}, {by})") for source, by in data.result_sources()]
    plus = "leaf ^ bool(by % 2)" if data.element == "bool" else "leaf + np.asarray(by, leaf.dtype)"
    if data.of_element.inexact:
        plus = f"np.where(np.signbit(leaf.real) & (leaf == 0), leaf, {plus})"
    if data.element == "bool" and data.of_structure.has_carrier:
        plus = "leaf ^ bool(by % 2) if leaf.dtype == bool else leaf + np.float32(by)"
    return [
        f"    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves({value})]",
        "    def plus(number, by):",
        "        leaf = leaves[number]",
        f"        return np.asarray({plus})",
        f"    return {data.result_tree(results)!r}",
    ]


def expected_operand(callback: Callback, data: DataKind, shown: Shown, leaves: Sequence[np.ndarray[Any, Any]]) -> Any:
    """The literal of an operand that a callback must get."""
    if callback.prints:
        text = printed(callback.function, leaves[0]) if data.plain else str(leaves[0])
        return " ".join(text.split())
    shown_leaves = [shown.leaf(leaf) for leaf in leaves]
    tree = data.of_structure.build(shown_leaves[1:] if callback.takes_tree else shown_leaves)
    return {"constant": shown_leaves[0], "value": tree} if callback.takes_tree else tree
