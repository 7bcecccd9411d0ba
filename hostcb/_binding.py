"""From a user's call of a public function to the primitive: checks all that can be checked now."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _jax
from ._callback import Float0, HostCallback, Static, shared
from ._kinds import Kind
from ._lowering import partial_automatic, placed_per_device
from ._primitive import host_callback_p, placed_callback_p
from ._shapes import ResultShape


def check_callable(function: Any, kind: Kind, argument: str) -> None:
    """Refuse what cannot be called."""
    if not callable(function):
        raise TypeError(f"{kind.name}: {argument} must be callable, got {function!r} of {type(function)}.")


def bind(
    kind: Kind,
    function: Callable[..., Any],
    arguments: Any,
    expected: ResultShape | None = None,
    *,
    place: Any = 0,
    vmap_method: str | None = None,
    static_leaves: bool = False,
    **details: Any,
) -> Any:
    """Bind the primitive for `function` on `arguments`. Returns its results as flat arrays; a tap's are `arguments`.

    Args:
        kind: which kind of callback.
        function: the user's.
        arguments: the pytree of what travels: `arg`, or `(args, kwargs)`.
        expected: what the function must return, for kinds that return something.
        place: the device that calls where the compiler spreads the program: a number, or a sharding of one device.
        vmap_method: how to batch it, for kinds that are batched by method.
        static_leaves: whether leaves that are no JAX values may stay here, to be given to the function as they are.
        **details: further fields of `HostCallback`.

    Raises:
        TypeError: a leaf is no JAX value.
        ValueError, NotImplementedError: `place` names no device of the computation, or the computation cannot have
            callbacks.
    """
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    operands: list[Any] = []
    absent: list[tuple[int, Float0 | Static]] = []
    for position, leaf in enumerate(leaves):
        if _jax.is_float0(leaf):
            absent.append((position, Float0(tuple(leaf.shape))))
        elif static_leaves and not _travels(leaf):
            absent.append((position, Static(leaf)))
        else:
            operands.append(_operand(kind, leaf))
    callback = shared(kind, function, tree, tuple(absent), expected.tree if expected is not None else None, details)
    _check_axes(callback, place)
    primitive = host_callback_p if isinstance(place, int) else placed_callback_p
    outs = primitive.bind(
        *operands,
        callback=callback,
        transforms=(),
        result_avals=expected.avals if expected is not None else (),
        device_index=place,
        vmap_method=vmap_method,
    )
    if not kind.identity:
        return list(outs)
    if not absent:
        return jax.tree_util.tree_unflatten(tree, map(_as_given, leaves, outs))
    tapped = iter(outs)
    given = [leaf if _jax.is_float0(leaf) else _as_given(leaf, next(tapped)) for leaf in leaves]
    return jax.tree_util.tree_unflatten(tree, given)


def _travels(leaf: Any) -> bool:
    """Whether JAX takes `leaf` for a value."""
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


def _is_plain(aval: Any) -> bool:
    """Whether a value is an array of a type that NumPy can have."""
    return type(aval) is jax.core.ShapedArray and isinstance(aval.dtype, np.dtype)


def _operand(kind: Kind, leaf: Any) -> Any:
    """The array that travels for one leaf."""
    if isinstance(leaf, jax.core.Tracer) and not kind.in_place and _is_plain(leaf.aval):
        # Nearly every operand is a value of a program already.
        return leaf
    try:
        array = jnp.asarray(leaf)
    except (TypeError, ValueError, OverflowError) as error:
        what = "arg" if kind.one_argument else "its arguments"
        raise TypeError(
            f"{kind.name}: every leaf of {what} must be an array or a scalar, got {leaf!r} of {type(leaf)}. Pass what "
            "is no JAX value to the function by a closure or functools.partial."
        ) from error
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        # The host has no typed keys: their words travel.
        return jax.random.key_data(array)
    if kind.in_place and jax.dtypes.itemsize_bits(array.dtype) < 8:
        raise packed(kind, array.dtype)
    return array


def packed(kind: Kind, dtype: Any) -> TypeError:
    """The refusal of types that no buffer protocol knows."""
    return TypeError(
        f"{kind.name}: {dtype} has less than a byte and is packed in device memory, where no host array can describe "
        "it. Convert it to int8 or float16 first, or use pure_callback, which does."
    )


def _as_given(leaf: Any, tapped: Any) -> Any:
    """What a tap returns for a leaf: the tapped array, or a typed key whose words were tapped."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(tapped, impl=_jax.key_implementation(dtype))
    return tapped


def position(kind: Kind, device_index: Any) -> int:
    """`device_index` as a number.

    Raises:
        TypeError, ValueError: it is no integer, or negative.
    """
    try:
        index = operator.index(device_index)
    except TypeError:
        raise TypeError(f"{kind.name}: device_index must be an integer, got {device_index!r}.") from None
    if index < 0:
        raise ValueError(f"{kind.name}: device_index must be 0 or more, got {index}.")
    return index


def device_of(kind: Kind, sharding: Any) -> Any:
    """The device that `sharding` names, or 0, the first of the computation's, if there is none (X5).

    Raises:
        TypeError: it is no sharding.
        NotImplementedError: it is one of several devices.
    """
    if sharding is None:
        return 0
    if not isinstance(sharding, jax.sharding.Sharding):
        raise TypeError(
            f"{kind.name}: sharding must be a jax.sharding.SingleDeviceSharding or None, got {sharding!r} of "
            f"{type(sharding)}."
        )
    if len(sharding.device_set) != 1:
        raise NotImplementedError(
            f"{kind.name} only supports SingleDeviceSharding, but got {type(sharding)}: {sharding!r} has "
            f"{len(sharding.device_set)} devices, and one of them has to call."
        )
    (device,) = sharding.device_set
    return device


def _check_axes(callback: HostCallback, place: Any) -> None:
    """Refuse while tracing what would be refused when lowering."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not mesh.manual_axes:
        return
    partial = set(mesh.manual_axes) != set(mesh.axis_names)
    if partial and (callback.kind.ordered or not callback.kind.visible):
        raise partial_automatic(callback, mesh.manual_axes, mesh.axis_names)
    if not isinstance(place, int):
        raise placed_per_device(callback)
