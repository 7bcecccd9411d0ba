"""Bind the primitive for a user's call of a public function, after all checks that are possible while tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _compat
from .._runtime.executions.executions import tracker
from .._spec.callback import LEAF, Float0, HostCallback, Static, known_tap, shared
from .._spec.kinds import IO, PRINTING_TAP, PURE, Kind
from .._spec.naming import attribute, shown, shows_tracer, subject
from .._spec.placement import partial_automatic, placed_per_device
from .._spec.shapes import ResultShape, struct_of
from .._spec.signatures import is_plain_function
from .held_functions import declare_effects
from .primitive import host_callback_p, placed_callback_p
from .shape_functions import ShapeFunction


def bind(
    kind: Kind,
    function: Callable[..., Any],
    arguments: Any,
    expected: ResultShape | ShapeFunction | None = None,
    *,
    place: Any = 0,
    vmap_method: str | None = None,
    is_static: Callable[[Any], bool] | None = None,
    **details: Any,
) -> Any:
    """Bind the primitive for `function` on `arguments`. Return its results; for a tap, `arguments`.

    Args:
        kind: the kind of callback.
        function: the user function.
        arguments: the pytree of operands: `arg`, or `(args, kwargs)`.
        expected: the results that the function must return, for kinds with results.
        place: under jit over a mesh, the device that calls: its position, or the device itself.
        vmap_method: how to batch it, for kinds that are batched by method.
        is_static: which leaves the function gets unchanged; none by default.
        **details: further fields of `HostCallback`.

    Raises:
        TypeError: a leaf is neither a JAX value nor static.
        ValueError, NotImplementedError: `place` is no device of the computation, or the computation cannot have
            callbacks.
    """
    declare_effects()
    leaves, tree = jax.tree_util.tree_flatten(arguments)
    leaves = [_value_of(kind, function, leaf) for leaf in leaves]
    operands: list[Any] = []
    absent: list[tuple[int, Float0 | Static]] = []
    for position, leaf in enumerate(leaves):
        if not travels(leaf):
            absent.append((position, Float0(tuple(leaf.shape))))
        elif is_static is not None and is_static(leaf):
            if not kind.visible and isinstance(leaf, str) and shows_tracer(leaf):
                raise _traced_text(kind, function, leaf)
            absent.append((position, Static(leaf)))
        else:
            operands.append(_operand(kind, function, leaf))
    if isinstance(expected, ShapeFunction):
        expected = expected.of_leaves(tree, _described(len(leaves), dict(absent), operands))
    result_tree = expected.tree if expected is not None else None
    if kind.ordered or kind.in_place or any(isinstance(operand, jax.core.Tracer) for operand in operands):
        callback = shared(kind, function, tree, tuple(absent), result_tree, details)
    else:
        # Outside jit nothing keeps such a callback, so there is no equal one to be found.
        callback = HostCallback(kind, function, tree, absent=tuple(absent), result_tree=result_tree, **details)
    tracker.admit(callback)
    _compat.refuse_if_unusable(callback, effectful=not kind.pure)
    _compat.check_holders(callback)
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
        return expected.restore(outs) if expected is not None else None
    if not absent:
        return jax.tree_util.tree_unflatten(tree, map(_as_given, leaves, outs))
    tapped, without_operand = iter(outs), {position for position, _ in absent}
    restored = [
        leaf if position in without_operand else _as_given(leaf, next(tapped)) for position, leaf in enumerate(leaves)
    ]
    return jax.tree_util.tree_unflatten(tree, restored)


def tap_of_one_array(kind: Kind, function: Callable[..., Any], value: Any) -> HostCallback | None:
    """Return the callback of a tap on one array: the primitive can be bound as it is.

    None if `bind` has to look closer: at another argument, or while tracing at a function that was not tapped before.
    Each Python frame under the user's costs as much as half of what `bind` does, so it is the caller who binds.
    """
    traced = isinstance(value, jax.core.Tracer)
    if not traced and not isinstance(value, jax.Array):
        return None
    aval = value.aval
    # Of the NumPy dtypes float0 alone has fields.
    if type(aval) is not jax.core.ShapedArray or not isinstance(aval.dtype, np.dtype) or aval.dtype.names is not None:
        return None
    callback = known_tap(kind, function)
    if callback is None:
        if traced or not is_plain_function(function, 2):
            return None
        callback = shared(kind, function, LEAF, (), None, {"with_device": False, "on_error": None})
    declare_effects()
    _compat.refuse_if_unusable(callback, effectful=True)
    _compat.check_holders(callback)
    _check_axes(callback, 0)
    return callback


def _described(count: int, absent: dict[int, Float0 | Static], operands: Sequence[Any]) -> list[Any]:
    """Return the leaves of the function's arguments, with a `jax.ShapeDtypeStruct` in place of each array."""
    rest = iter(operands)
    return [absent[each].described if each in absent else struct_of(next(rest)) for each in range(count)]


def is_no_value(leaf: Any) -> bool:
    """Return whether JAX's debug callbacks give a leaf to their function unchanged."""
    return not _is_value(leaf)


def is_no_array(leaf: Any) -> bool:
    """Return whether a leaf can only be meant to reach the function unchanged: no array comes of it.

    What says that it is an array is refused if it is none that a device can hold. As a static leaf its value would be
    part of the program, and would not follow the program's.
    """
    if isinstance(leaf, (str, bytes, type)):
        return True
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)) or _is_value(leaf):
        return False
    if any(attribute(leaf, name) is not None for name in ("__array__", "__jax_array__", "__dlpack__")):
        return False
    try:
        # A range, or an object with the buffer protocol, is an operand.
        return np.asarray(leaf).dtype == object
    except Exception:
        # The methods of the user's object may raise any exception.
        return True


def _is_value(leaf: Any) -> bool:
    """Return whether `leaf` is a JAX value."""
    if isinstance(leaf, (jax.core.Tracer, jax.Array)) or _compat.is_ref(leaf):
        # A part of a mutable array has a value, but `jax.typeof` refuses it.
        return True
    try:
        jax.typeof(leaf)
    except Exception:
        # Usually TypeError, but reading the leaf's attributes may raise any exception.
        return False
    return True


def _is_plain(aval: Any) -> bool:
    """Return whether a value is an array with a NumPy dtype."""
    return type(aval) is jax.core.ShapedArray and isinstance(aval.dtype, np.dtype)


def _operand(kind: Kind, function: Any, leaf: Any) -> Any:
    """Return the operand for one leaf."""
    if isinstance(leaf, (jax.core.Tracer, jax.Array)) and not kind.in_place and _is_plain(leaf.aval):
        # Nearly every operand is already a traced value or an array.
        return leaf
    if _compat.is_ref(leaf) and not kind.in_place:
        # The operand is the ref's value at this point of the program, as in JAX's debug callbacks.
        leaf = leaf[...]
    array = as_array(kind, function, leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        # NumPy has no typed PRNG keys, so the operand is the key's words.
        return jax.random.key_data(array)
    if kind.in_place and jax.dtypes.itemsize_bits(array.dtype) < 8:
        raise packed(kind, function, array.dtype)
    return array


def travels(leaf: Any) -> bool:
    """Return whether a leaf that is a JAX value becomes an operand; a float0 leaf does not."""
    return not _compat.is_float0(leaf)


def as_array(kind: Kind, function: Any, leaf: Any) -> Any:
    """Convert a leaf to a JAX array, which has 64 bits if the leaf has, also with x64 off.

    Raises:
        TypeError: it is no JAX value, or a mutable array, whose own memory a callback cannot be given.
        TooLargeError: it is an integer that JAX's widest type cannot hold.
    """
    leaf = _value_of(kind, function, leaf)
    if _compat.is_ref(leaf):
        raise TypeError(
            f"{subject(kind.name, function)}: {leaf!r} is a mutable array (jax.Ref), whose own memory a "
            "callback cannot be given. Pass its value, ref[...], and write a result into it: ref[...] = result."
        )
    try:
        with jax.enable_x64(True) if _has_width(leaf) else contextlib.nullcontext():
            if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.itemsize > 4:
                # While tracing, JAX knows an array by its identity, and takes what it has made of it before: 32 bits.
                leaf = np.asanyarray(leaf).view()
            try:
                return jnp.asarray(leaf)
            except (FloatingPointError, jax.errors.JaxRuntimeError):
                # `jax_debug_nans` and a transfer guard are for the operations of the program. JAX puts operands like
                # this.
                return jax.device_put(leaf)
    except OverflowError as error:
        raise TooLargeError.of(kind, function, leaf) from error
    except Exception as error:
        # The user's own method may have raised. What JAX says of a text or an object has a traceback of its own code.
        is_own = not isinstance(leaf, np.ndarray | np.generic) and attribute(leaf, "__array__") is not None
        raise _no_value(kind, function, leaf) from error if is_own else None


def _has_width(leaf: Any) -> bool:
    """Return whether a leaf that is no JAX array has a type of its own, as NumPy's have and Python's numbers do not."""
    return isinstance(leaf, np.generic) or not isinstance(leaf, (jax.Array, int, float, complex))


def value_of(leaf: Any) -> Any:
    """Return the array of an object with `__jax_array__`, such as a variable of a layer library; other leaves as given.

    Raises:
        Exception: that method does.
    """
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex, str, type)):
        return leaf
    convert = attribute(leaf, "__jax_array__")
    return leaf if convert is None else convert()


def _value_of(kind: Kind, function: Any, leaf: Any) -> Any:
    try:
        return value_of(leaf)
    except Exception as error:
        raise _no_value(kind, function, leaf) from error


def _no_value(kind: Kind, function: Any, leaf: Any) -> TypeError:
    what = "arg" if kind.one_argument else "its arguments"
    remedy = "Pass what is no JAX value to the function by a closure or functools.partial."
    if kind is PRINTING_TAP:
        remedy = "Print a text as a label: id_print(x, what='the text')."
    elif isinstance(leaf, jax.ShapeDtypeStruct) and kind.name in (PURE.name, IO.name):
        remedy = f"The result_shape comes before the operands: {kind.name}(function, result_shape, *operands)."
    of = f"of {type(leaf)}"
    if isinstance(leaf, np.ndarray | np.generic):
        of = f"of the dtype {leaf.dtype}, which no device can hold"
    return TypeError(
        f"{subject(kind.name, function)}: every leaf of {what} must be an array or a scalar, got {shown(leaf)} {of}. "
        f"{remedy}"
    )


def _traced_text(kind: Kind, function: Any, leaf: str) -> ValueError:
    # Functions of debug callbacks get any text, as JAX's do.
    return ValueError(
        f"{subject(kind.name, function)}: {shown(leaf)} has the text of a traced value. An f-string is made while JAX "
        "traces, when the value is not known: pass the value itself beside the text."
    )


class TooLargeError(OverflowError, TypeError):
    """An integer operand does not fit JAX's widest integer type."""

    @classmethod
    def of(cls, kind: Kind, function: Any, number: Any) -> TooLargeError:
        widest = jax.dtypes.canonicalize_dtype(np.int64)
        narrow, remedy = "", "Convert"
        if widest != np.int64:
            narrow, remedy = " while jax_enable_x64 is off", "Set jax_enable_x64 (JAX_ENABLE_X64=1), convert"
        return cls(
            f"{subject(kind.name, function)}: the number {shown(number)} does not fit {widest}, the type that JAX "
            f"gives an integer{narrow}. {remedy} the number to a float, or pass it to the function by a closure or "
            "functools.partial."
        )


def packed(kind: Kind, function: Any, dtype: Any) -> TypeError:
    """The error for dtypes that no buffer protocol can describe."""
    return TypeError(
        f"{subject(kind.name, function)}: {dtype} has less than a byte and is packed in device memory, where no host "
        "array can describe it. Convert it to int8 or float16 first, or use pure_callback, which does."
    )


def _as_given(leaf: Any, tapped: Any) -> Any:
    """Return a tap's result for a leaf: the tapped array, the typed key of the tapped words, or the ref itself."""
    if tapped is leaf or _compat.is_ref(leaf):
        return leaf
    if _has_width(leaf) and jax.dtypes.canonicalize_dtype(tapped.dtype) != tapped.dtype:
        # The function gets the 64 bits. The program goes on with what JAX makes of them.
        return jax.device_put(np.array(leaf))
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(tapped, impl=_compat.key_implementation(dtype))
    return tapped


def _check_axes(callback: HostCallback, place: Any) -> None:
    """Raise the errors for mesh axes while tracing, where lowering would raise them later."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not mesh.manual_axes:
        return
    partial = set(mesh.manual_axes) != set(mesh.axis_names)
    if partial and not callback.kind.takes_automatic_axes:
        raise partial_automatic(callback, mesh.manual_axes, mesh.axis_names)
    if not isinstance(place, int):
        raise placed_per_device(callback)
