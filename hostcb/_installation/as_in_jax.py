"""Functions of callbacks that get, return and fail as those of JAX's own callbacks do (H27)."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from .. import _compat
from .._api.jax_arrays import JaxArrays
from .._errors.frames import shorten_traceback
from .._errors.refusals import is_mismatch
from .._primitive.binding import value_of


@dataclasses.dataclass(frozen=True)
class _AsInJax(JaxArrays):
    """Gives a function what JAX's callback gives it."""

    def converted(self, array: np.ndarray, device: jax.Device) -> Any:
        return super().converted(narrowed(array), device)


@dataclasses.dataclass(frozen=True)
class _Returning(_AsInJax):
    """Takes a result in any containers that have as many leaves as JAX expects, and narrows integers as JAX does."""

    tree: PyTreeDef
    # The shape and the dtype of each leaf.
    expected: tuple[tuple[Any, Any], ...]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        leaves = jax.tree_util.tree_leaves(result)
        if len(leaves) != self.tree.num_leaves:
            # Refused further on.
            return result
        return jax.tree_util.tree_unflatten(self.tree, map(_taken, leaves, self.expected))


def _taken(leaf: Any, expected: tuple[Any, Any]) -> Any:
    """Return a leaf of a result as JAX takes it: without a mask, and in 32 bits with x64 off, whatever they hold."""
    if _is_key(leaf):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind == "O":
        # Refused further on, with a text about the leaf.
        return leaf
    shape, dtype = expected
    if array.dtype.kind not in "iu" or array.dtype == dtype or jax.dtypes.canonicalize_dtype(array.dtype) != dtype:
        return array
    # Of another shape it is refused further on, with a text that names the type that was returned.
    return array.astype(dtype) if array.shape == shape else array


@dataclasses.dataclass(frozen=True)
class _Debugging(_AsInJax):
    """Gives a function typed PRNG keys where JAX does."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__call__(*_as_given(args), **_as_given(kwargs))


class _Key:
    """A typed PRNG key among the operands of a debug callback, which crosses as its words."""

    def __init__(self, words: Any, dtype: Any):
        self.words = words
        self.dtype = dtype

    def as_given(self) -> Any:
        """Return what JAX gives to the function: the words from a compiled program, and the key outside jit."""
        if isinstance(self.words, jax.Array):
            return jax.random.wrap_key_data(self.words, impl=_compat.key_implementation(self.dtype))
        return self.words


jax.tree_util.register_pytree_node(
    _Key, lambda key: ((key.words,), key.dtype), lambda dtype, words: _Key(*words, dtype)
)


def narrowed(leaf: Any) -> Any:
    """Return an array or a scalar of NumPy in the type that JAX gives it, whatever its value is; others as given."""
    if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype.kind not in "iufc":
        return leaf
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return leaf if leaf.dtype == dtype else leaf.astype(dtype)


def marking_keys(leaf: Any) -> Any:
    """Return an argument of a debug callback so that outside jit its function gets typed PRNG keys."""
    value = value_of(leaf)
    return _Key(jax.random.key_data(value), value.dtype) if _is_key(value) else narrowed(leaf)


def taken(arguments: Any, change: Callable[[Any], Any] = narrowed) -> Any:
    """Return the arguments of a callback with each leaf as JAX takes it."""
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    changed = [*map(change, leaves)]
    # A container of the user's may not be made again for nothing.
    return arguments if all(map(operator.is_, leaves, changed)) else jax.tree_util.tree_unflatten(tree, changed)


def _as_given(arguments: Any) -> Any:
    return jax.tree_util.tree_map(
        lambda leaf: leaf.as_given() if isinstance(leaf, _Key) else leaf,
        arguments,
        is_leaf=lambda leaf: isinstance(leaf, _Key),
    )


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def returning(function: Any, result_shape_dtypes: Any) -> Any:
    """Return the function of JAX's `pure_callback` or `io_callback` for hostcb's."""
    if not callable(function):
        # Refused further on.
        return function
    leaves, tree = jax.tree_util.tree_flatten(result_shape_dtypes)
    return _Returning(function, tree, tuple(map(_shape_and_dtype, leaves)))


def _shape_and_dtype(leaf: Any) -> tuple[Any, Any]:
    try:
        return tuple(leaf.shape), leaf.dtype
    except Exception:
        # It describes no result: refused further on.
        return None, None


def debugging(function: Callable[..., Any]) -> Any:
    """Return the function of JAX's `debug.callback` or `debug.print` for hostcb's."""
    return _Debugging(function) if callable(function) else function


# Fields of `HostCallback` by which these callbacks fail, and give results, as JAX's own ----------------------------


def _logging_failures(name: str) -> Callable[[BaseException], None]:
    def log(exception: BaseException) -> None:
        # JAX logs nothing of a result that does not match.
        if not is_mismatch(exception):
            shorten_traceback(exception)
            _compat.log_failure(name, exception)

    return log


def _ignore_failure(_: BaseException) -> None:
    """JAX does not log the failures of buffer callbacks."""


def _placed_on_cpu(operands: Sequence[Any]) -> Sequence[Any]:
    placed: Sequence[Any] = jax.device_put(list(operands), jax.local_devices(backend="cpu")[0])
    return placed


PURE_CALLBACK: dict[str, Any] = {"report_failure": _logging_failures("pure_callback"), "invariant_results": True}
IO_CALLBACK: dict[str, Any] = {"report_failure": _logging_failures("io_callback"), "invariant_results": True}
BUFFER_CALLBACK: dict[str, Any] = {"report_failure": _ignore_failure, "invariant_results": True}
# JAX logs failures of `debug.print` under this name, too.
DEBUG_CALLBACK: dict[str, Any] = {
    "report_failure": _logging_failures("debug.callback"),
    "eager_operands": _placed_on_cpu,
}
