"""What a host callback is: a kind, a user function, and how its operands and results are laid out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef

Transforms = tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How one kind of callback differs from the others; the machinery is the same for all."""

    name: str
    # The primitive returns its operands, the device does not wait, and the function is told of the transforms.
    identity: bool
    refuses_differentiation: str = ""
    refuses_batching: str = ""


TAP = Kind("id_tap", identity=True)
CALL = Kind(
    "call",
    identity=False,
    refuses_differentiation=(
        "hostcb.call does not support differentiation (jvp, grad): JAX cannot see into {callback}. Give the function "
        "that calls it a derivative with jax.custom_jvp or jax.custom_vjp, or use id_tap if no result is needed."
    ),
    refuses_batching=(
        "hostcb.call does not support vmap by default: {callback} was written for unbatched operands. Say how to "
        "batch it with call(..., vmap_method='sequential' | 'sequential_unrolled' | 'expand_dims' | 'broadcast_all'), "
        "define a rule with jax.custom_batching.custom_vmap, or use id_tap if no result is needed."
    ),
)


@dataclasses.dataclass(frozen=True, eq=False)
class HostCallback:
    """A user function with its calling convention; equal ones make equal primitives and so hit the caches (H18)."""

    kind: Kind
    function: Callable[..., Any]
    with_device: bool
    arg_tree: PyTreeDef
    # Leaves that never travel: the (position, shape) of operands without a value, such as float0 tangents.
    absent: tuple[tuple[int, tuple[int, ...]], ...] = ()
    result_tree: PyTreeDef | None = None
    # The callback for the primals alone, where this one takes (primals, tangents).
    primal: HostCallback | None = None

    def _key(self) -> tuple[Any, ...]:
        return (self.kind, self.with_device, self.arg_tree, self.absent, self.result_tree, self.primal)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostCallback):
            return NotImplemented
        same = self.function is other.function or self.function == other.function
        return bool(same) and self._key() == other._key()

    def __hash__(self) -> int:
        try:
            function_hash = hash(self.function)
        except TypeError:
            # A callable without a hash is as good as any other, it only has to be the same object for a cache hit.
            function_hash = id(self.function)
        return hash((function_hash, self._key()))

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
    def takes_one_array(self) -> bool:
        """The operand is a single array: nearly every call, and worth sparing the tree."""
        return not self.absent and self.arg_tree == jax.tree_util.tree_structure(0)

    @functools.cached_property
    def returns_one_array(self) -> bool:
        return self.result_tree == jax.tree_util.tree_structure(0)

    def argument(self, arrays: Sequence[np.ndarray]) -> Any:
        """The user's argument, from the arrays that the device sent."""
        if self.takes_one_array:
            return arrays[0]
        leaves: list[Any] = list(arrays)
        for position, shape in self.absent:
            leaves.insert(position, np.zeros(shape, jax.dtypes.float0))
        return jax.tree_util.tree_unflatten(self.arg_tree, leaves)

    def invoke(self, arrays: Sequence[np.ndarray], device: Any, transforms: Transforms) -> Any:
        """Run the user function; `transforms` is passed to taps alone."""
        argument = self.argument(arrays)
        if self.kind.identity:
            if self.with_device:
                return self.function(argument, described(transforms), device=device)
            return self.function(argument, described(transforms))
        if self.with_device:
            return self.function(argument, device=device)
        return self.function(argument)


def described(transforms: Transforms) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The hashable form that the primitive carries, as the user sees it."""
    return tuple((name, {"batch_dims": params[0]} if name == "batch" else {}) for name, *params in transforms)


def describe(function: Callable[..., Any]) -> str:
    """The name of a user function and where it stands, for messages."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None) or repr(inner)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None:
        return f"{name}"
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"
