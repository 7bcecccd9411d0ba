"""What a host callback is: a kind, a user function, and how its operands and results are laid out."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from ._kinds import Kind

Transforms = tuple[tuple[Any, ...], ...]

# The tree of one array.
LEAF = jax.tree_util.tree_structure(0)


@functools.cache
def _leaves(count: int) -> PyTreeDef:
    """The tree of `(args, kwargs)` for so many arrays."""
    return jax.tree_util.tree_structure(((0,) * count, {}))


@dataclasses.dataclass(frozen=True)
class Float0:
    """A leaf without a value, such as the tangent of an integer."""

    shape: tuple[int, ...]

    @property
    def value(self) -> Any:
        return np.zeros(self.shape, jax.dtypes.float0)


class Static:
    """A leaf that is no JAX value, and goes to the function as it is."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        # Equal values of different types print differently, and what cannot be compared is equal to itself alone.
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        return self.value is other.value or (isinstance(self.value, (str, bytes)) and self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value) if isinstance(self.value, (str, bytes)) else id(self.value)


@dataclasses.dataclass(frozen=True, eq=False)
class HostCallback:
    """A user function with its calling convention; equal ones make equal primitives and so hit the caches (H18)."""

    kind: Kind
    function: Callable[..., Any]
    arg_tree: PyTreeDef
    with_device: bool = False
    # Leaves that never travel, with their positions.
    absent: tuple[tuple[int, Float0 | Static], ...] = ()
    result_tree: PyTreeDef | None = None
    # The callback for the primals alone, where this one takes (primals, tangents).
    primal: HostCallback | None = None
    # Under jit over a mesh: called for each part of the operands, where it is.
    partitioned: bool = False
    # For functions that write in place: (operand, result) pairs that are one piece of memory, and whether a GPU may
    # record what the function enqueues and repeat it without calling again.
    aliases: tuple[tuple[int, int], ...] = ()
    command_buffer: bool = False
    _key: tuple[Any, ...] = dataclasses.field(init=False, repr=False)
    _hash: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            function_hash = hash(self.function)
        except TypeError:
            # A callable without a hash is as good as any other, it only has to be the same object for a cache hit.
            function_hash = id(self.function)
        # JAX looks equations up by their parameters again and again. All fields but the function, which may compare
        # in ways of its own.
        key = (
            self.kind,
            self.arg_tree,
            self.with_device,
            self.absent,
            self.result_tree,
            self.primal,
            self.partitioned,
            self.aliases,
            self.command_buffer,
        )
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash((function_hash, key)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, HostCallback):
            return NotImplemented
        same = self.function is other.function or self.function == other.function
        return bool(same) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def name(self) -> str:
        return describe(self.function)

    def __repr__(self) -> str:
        return f"{self.kind.name}({self.name})"

    @property
    def operand_count(self) -> int:
        """How many arrays travel to the host."""
        return self.arg_tree.num_leaves - len(self.absent)

    @functools.cached_property
    def takes_leaves(self) -> bool:
        """The arrays are the function's arguments as they are: nearly every callback, and worth sparing the tree."""
        if self.absent:
            return False
        return self.arg_tree == (LEAF if self.kind.one_argument else _leaves(self.arg_tree.num_leaves))

    @property
    def takes_only_arrays(self) -> bool:
        """`function(*arrays)` is all there is to calling it."""
        return self.takes_leaves and not self.with_device and not self.kind.identity

    @property
    def is_told_of_transforms(self) -> bool:
        """`function(array, transforms)` is all there is to calling it."""
        return self.takes_leaves and not self.with_device and self.kind.identity

    @functools.cached_property
    def returns_one_array(self) -> bool:
        return self.result_tree == LEAF

    def argument(self, arrays: Sequence[Any]) -> Any:
        """The arrays that the device sent in the tree of what the user gave: `arg`, or `(args, kwargs)`."""
        leaves: list[Any] = list(arrays)
        for position, leaf in self.absent:
            leaves.insert(position, leaf.value)
        return jax.tree_util.tree_unflatten(self.arg_tree, leaves)

    def invoke(self, arrays: Sequence[np.ndarray], device: Any, transforms: Transforms) -> Any:
        """Run the user function, in whatever form it takes its arguments; `transforms` is passed to taps alone."""
        if not self.kind.one_argument:
            positional, keywords = self.argument(arrays)
            return self.function(*positional, **keywords)
        argument = arrays[0] if self.takes_leaves else self.argument(arrays)
        if self.kind.identity:
            if self.with_device:
                return self.function(argument, described(transforms), device=device)
            return self.function(argument, described(transforms))
        if self.with_device:
            return self.function(argument, device=device)
        return self.function(argument)

    @property
    def fills_leaves(self) -> bool:
        """The buffers are the function's arguments as they are: `function(context, result, *operands)`."""
        return self.takes_leaves and self.returns_one_array

    def fill(self, context: Any, buffers: Sequence[Any]) -> None:
        """Run a user function that writes, on the buffers of the operands and then of the results."""
        count = self.operand_count
        out = jax.tree_util.tree_unflatten(self.result_tree, buffers[count:])
        positional, keywords = self.argument(buffers[:count])
        if self.function(context, out, *positional, **keywords) is not None:
            raise self.returned_something()

    def returned_something(self) -> ValueError:
        """The refusal of what a function returned that should have written."""
        return ValueError(
            f"{self.kind.name} callback must not return any values, but {self.name} did. Write into the buffers that "
            "it is given as `out`."
        )


# Those that take arrays alone, by all that tells them apart. Not by the function itself, which may well lead to a
# program that holds the callback; it lives as long as the callback does, and nothing else has its number meanwhile.
_alike: weakref.WeakValueDictionary[tuple[Any, ...], HostCallback] = weakref.WeakValueDictionary()


def shared(
    kind: Kind,
    function: Callable[..., Any],
    arg_tree: PyTreeDef,
    absent: tuple[tuple[int, Float0 | Static], ...],
    result_tree: PyTreeDef | None,
    details: dict[str, Any],
) -> HostCallback:
    """The callback of these fields, and the very one where there is one: JAX compares it with itself at no cost."""
    plain = arg_tree == LEAF or arg_tree == _leaves(arg_tree.num_leaves)
    if absent or not plain or not (result_tree is None or result_tree == LEAF):
        return HostCallback(kind, function, arg_tree, absent=absent, result_tree=result_tree, **details)
    key = (id(function), kind, arg_tree, result_tree, *details.items())
    found = _alike.get(key)
    if found is None:
        found = _alike[key] = HostCallback(kind, function, arg_tree, result_tree=result_tree, **details)
    return found


def described(transforms: Transforms) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The hashable form that the primitive carries, as the user sees it."""
    if not transforms:
        return ()
    return tuple((name, {"batch_dims": params[0]} if name == "batch" else {}) for name, *params in transforms)


def describe(function: Callable[..., Any]) -> str:
    """The name of a user function and where it stands, for messages."""
    inner: Any = function
    while isinstance(inner, functools.partial) or hasattr(inner, "__wrapped__"):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__wrapped__
    name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None) or repr(inner)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None:
        return f"{name}"
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"
