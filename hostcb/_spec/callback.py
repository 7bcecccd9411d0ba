"""A host callback: its kind, its user function, and the trees of its arguments and results."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from .failure_policy import OnError
from .kinds import Kind
from .naming import describe, place_of_call

Transforms = tuple[tuple[Any, ...], ...]

# The tree of one array.
LEAF = jax.tree_util.tree_structure(0)


@functools.cache
def _leaves(count: int) -> PyTreeDef:
    """Return the tree of `(args, kwargs)` with `count` positional arrays."""
    return jax.tree_util.tree_structure(((0,) * count, {}))


@dataclasses.dataclass(frozen=True)
class Float0:
    """A leaf without a value, such as the tangent of an integer."""

    shape: tuple[int, ...]

    @property
    def value(self) -> Any:
        return np.zeros(self.shape, jax.dtypes.float0)

    @property
    def described(self) -> Any:
        return jax.ShapeDtypeStruct(self.shape, jax.dtypes.float0)


class Static:
    """A leaf that is no JAX value, and is passed to the function unchanged."""

    def __init__(self, value: Any):
        self.value = self.described = value

    def __eq__(self, other: object) -> bool:
        # Equal values of different types print differently. Only strings are compared by value, others by identity.
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
    # Leaves that are not operands of the primitive, with their positions.
    absent: tuple[tuple[int, Float0 | Static], ...] = ()
    result_tree: PyTreeDef | None = None
    # If this callback takes (primals, tangents): the callback for the primals alone.
    primal: HostCallback | None = None
    # Under jit over a mesh: call on each device with its shard of the operands.
    partitioned: bool = False
    # For in-place functions: (operand, result) pairs that share memory, and whether a GPU may record the enqueued work
    # and repeat it without calling the function again.
    aliases: tuple[tuple[int, int], ...] = ()
    command_buffer: bool = False
    # What happens after a failure; None for what the kind does: a tap leaves it to the barrier, any other callback ends
    # its computation.
    on_error: OnError | None = None
    # The method by which vmap made one call of a whole batch, for errors to say so.
    batched_by: str | None = None
    # For messages: the line that calls back, if the function is not the user's own. Equal callbacks may differ in it.
    called_at: str = ""
    # For functions of JAX's callbacks, which `hostcb.install` redirects: what reports a failure in place of barriers,
    # what makes the function's arrays outside jit, where its exception then passes on, and whether results vary over
    # no axis of a `shard_map`.
    report_failure: Callable[[BaseException], None] | None = None
    eager_operands: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    invariant_results: bool = False

    # No cached_property: that of Python 3.11 has one lock for all callbacks, under which a user's `__hash__` runs.

    @property
    def _key(self) -> tuple[Any, ...]:
        """All fields but the function, which may have its own `__eq__`, and `called_at`."""
        found: tuple[Any, ...] | None = self.__dict__.get("_known_key")
        if found is None:
            # JAX often looks equations up by their parameters, so the key is made once; outside jit nothing asks.
            found = self.__dict__["_known_key"] = (
                self.kind,
                self.arg_tree,
                self.with_device,
                self.absent,
                self.result_tree,
                self.primal,
                self.partitioned,
                self.aliases,
                self.command_buffer,
                self.on_error,
                self.batched_by,
                self.report_failure,
                self.eager_operands,
                self.invariant_results,
            )
        return found

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, HostCallback):
            return NotImplemented
        return self._key == other._key and _same(self.function, other.function)

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_known_hash")
        if found is None:
            try:
                function_hash = hash(self.function)
            except Exception:
                # An unhashable callable is allowed. It only hits the caches as the same object.
                function_hash = id(self.function)
            found = self.__dict__["_known_hash"] = hash((function_hash, self._key))
        return found

    @functools.cached_property
    def name(self) -> str:
        return describe(self.function, self.called_at)

    def named_by_call(self, frames: Callable[[], Iterable[tuple[str, int]]]) -> HostCallback:
        """Return an equal callback, whose name has the line that calls back if the function is not the user's own."""
        called_at = self.called_at or place_of_call(self.function, frames)
        return dataclasses.replace(self, called_at=called_at) if called_at else self

    def __repr__(self) -> str:
        return f"{self.kind.name}: {self.name}"

    @property
    def operand_count(self) -> int:
        """The number of arrays that are passed to the host."""
        return self.arg_tree.num_leaves - len(self.absent)

    @functools.cached_property
    def takes_leaves(self) -> bool:
        """Whether the operands are the function's arguments, without a tree, as for nearly every callback."""
        if self.absent:
            return False
        return self.arg_tree == (LEAF if self.kind.one_argument else _leaves(self.arg_tree.num_leaves))

    @functools.cached_property
    def returns_one_array(self) -> bool:
        return self.result_tree == LEAF

    def argument(self, arrays: Sequence[Any]) -> Any:
        """Restore the tree of the user's argument, `arg` or `(args, kwargs)`, from the operands' arrays."""
        leaves: list[Any] = list(arrays)
        for position, leaf in self.absent:
            leaves.insert(position, leaf.value)
        return jax.tree_util.tree_unflatten(self.arg_tree, leaves)

    def invoker(self, transforms: Transforms) -> Callable[..., Any]:
        """Return a function from the operands' arrays to the user function's result.

        It is called as `invoke(*arrays)`, or as `invoke(device, *arrays)` if `with_device`. Only taps get `transforms`.
        """
        function, to_tree = self.function, self.argument
        if not self.kind.one_argument:

            def with_arguments(*arrays: Any) -> Any:
                positional, keywords = to_tree(arrays)
                return function(*positional, **keywords)

            return function if self.takes_leaves else with_arguments
        # Each usual form has its own closure, which spares calls. A tap may change the dicts of its transforms, so each
        # call gets new ones.
        if self.kind.identity:
            if self.with_device:
                return lambda device, *arrays: function(to_tree(arrays), described(transforms), device=device)
            if not self.takes_leaves or transforms:
                return lambda *arrays: function(to_tree(arrays), described(transforms))
            return lambda array: function(array, ())
        if self.with_device:
            return lambda device, *arrays: function(to_tree(arrays), device=device)
        return function if self.takes_leaves else lambda *arrays: function(to_tree(arrays))

    @property
    def fills_leaves(self) -> bool:
        """Whether the buffers are the function's arguments, without a tree: `function(context, result, *operands)`."""
        return self.takes_leaves and self.returns_one_array

    def fill(self, context: Any, buffers: Sequence[Any]) -> Any:
        """Run an in-place function on the operand buffers and then the result buffers; it should return None."""
        count = self.operand_count
        out = jax.tree_util.tree_unflatten(self.result_tree, buffers[count:])
        positional, keywords = self.argument(buffers[:count])
        return self.function(context, out, *positional, **keywords)


def _same(one: Any, other: Any) -> bool:
    """Return whether two functions are equal; False if comparing them raises or gives no truth value."""
    try:
        return one is other or bool(one == other)
    except Exception:
        return False


# Callbacks with plain trees, by all their fields. The key has the function's id, not the function: that may refer to a
# program that holds the callback. The callback keeps the function alive, so no other object has this id.
_alike: weakref.WeakValueDictionary[tuple[Any, ...], HostCallback] = weakref.WeakValueDictionary()


def shared(
    kind: Kind,
    function: Callable[..., Any],
    arg_tree: PyTreeDef,
    absent: tuple[tuple[int, Float0 | Static], ...],
    result_tree: PyTreeDef | None,
    details: dict[str, Any],
) -> HostCallback:
    """Return the callback with these fields, the same object while one lives: JAX then compares it by identity."""
    plain = arg_tree == LEAF or arg_tree == _leaves(arg_tree.num_leaves)
    if absent or not plain or not (result_tree is None or result_tree == LEAF):
        return HostCallback(kind, function, arg_tree, absent=absent, result_tree=result_tree, **details)
    key = (id(function), kind, arg_tree, result_tree, *details.items())
    found = _alike.get(key)
    if found is None:
        found = _alike[key] = HostCallback(kind, function, arg_tree, result_tree=result_tree, **details)
    return found


def known_tap(kind: Kind, function: Callable[..., Any]) -> HostCallback | None:
    """Return the callback of a tap on one array without further options, if one lives: its function was checked."""
    return _alike.get((id(function), kind, LEAF, None, ("with_device", False), ("on_error", None)))


def described(transforms: Transforms) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Convert the primitive's hashable transforms into the form that tap functions get."""
    if not transforms:
        return ()
    return tuple((name, {"batch_dims": params[0]} if name == "batch" else {}) for name, *params in transforms)


def callbacks_in(jaxpr: Any) -> Iterator[HostCallback]:
    """Yield the callbacks in a jaxpr and in its inner jaxprs."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for value in equation.params.values():
            if isinstance(value, HostCallback):
                yield value
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from callbacks_in(inner)
