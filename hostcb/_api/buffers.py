"""`buffer_callback`: a function that works in device memory (B1 to B5)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate

import jax

from .._errors.frames import leave_out_frames, leaving_out_frames
from .._primitive.batching import EXTERNAL_METHODS, ExternalMethod, check_method
from .._primitive.binding import as_array, bind, packed, travels
from .._spec.kinds import BUFFER, BUFFER_WITH_EFFECT, Kind
from .._spec.naming import check_callable, shown, subject
from .._spec.shapes import ResultShape


def buffer_callback(
    callback: Callable[Concatenate[Any, Any, ...], None],
    result_shape_dtypes: Any,
    *,
    has_side_effect: bool = False,
    vmap_method: ExternalMethod | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
    command_buffer_compatible: bool = False,
) -> Callable[..., Any]:
    """Make a JAX function from one that fills device memory in place, as `jax.experimental.buffer_callback` does.

    hostcb copies nothing, on CPU or GPU: the function gets the device memory of operands and results itself.

    Args:
        callback: called as `callback(ctx, out, *args, **kwargs)`. `ctx`, a `hostcb.ExecutionContext`, has the
            `stage` of the execution (a `hostcb.ExecutionStage`) and on GPU the `stream` that the work belongs on. `out`
            holds a writable `hostcb.Buffer` for each leaf of `result_shape_dtypes`, `args` and `kwargs` one for each
            operand. A buffer has `__array__` on CPU,
            `__cuda_array_interface__` on GPU and `__dlpack__` on both. It is only valid until the function returns:
            copy the data that you keep, with `np.asarray(buffer).copy()`. If you keep an array from
            `np.asarray(buffer)` alive, JAX mistakes later buffers for this one (an array from `np.from_dlpack(buffer)`
            is harmless). The function must not write to operands, except those that share their memory with a result.
            It must write all results and return nothing.
        result_shape_dtypes: a pytree whose leaves have `shape` and `dtype`.
        has_side_effect: call exactly once each time that the program comes to it, even if no result is used.
            Otherwise the function counts as pure.
        vmap_method: how to batch it, as for `pure_callback`; without it, vmap is refused.
        input_output_aliases: a dict from the number of an operand to the number of the result that shares its memory.
            Numbers count all leaves; those of the keyword arguments come last, in the order of their names.
            Both must have the same shape and dtype.
        command_buffer_compatible: on GPU, let the function be called once to record what it enqueues on the stream,
            and run the recording from then on.

    Returns:
        A function that takes pytrees of arrays, as positional and keyword arguments, and returns the results in the
        tree of `result_shape_dtypes`.

    Raises:
        TypeError: `callback` is not callable, an argument is no JAX value, is a mutable array, or has a type of less
            than a byte.
        ValueError: `result_shape_dtypes` is no shape, `vmap_method` is unknown, an alias has a number out of range or
            pairs unequal types, the platform has no such callbacks; or the callback is differentiated, which
            needs `jax.custom_jvp` or `jax.custom_vjp`.
        NotImplementedError: batched without a method, or `has_side_effect` under jit over several devices.
        jax.errors.JaxRuntimeError: when the computation runs, if the function raises or returns something.

    Follows B1 to B5. Example:

        >>> import hostcb, jax, numpy as np
        >>> def add_one(ctx, out, x):
        ...     np.add(np.asarray(x), 1, out=np.asarray(out))
        >>> x = jax.numpy.arange(3)
        >>> print(jax.jit(hostcb.buffer_callback(add_one, x))(x))
        [1 2 3]
    """
    try:
        function = in_place(
            BUFFER_WITH_EFFECT if has_side_effect else BUFFER,
            callback,
            result_shape_dtypes,
            vmap_method,
            input_output_aliases,
            command_buffer_compatible,
        )
    except Exception as error:
        leave_out_frames(error)
        raise
    return leaving_out_frames(function)


def in_place(
    kind: Kind,
    callback: Callable[..., None],
    result_shape_dtypes: Any,
    vmap_method: str | None,
    aliases: Mapping[int, int] | None,
    command_buffer: bool,
    **details: Any,
) -> Callable[..., Any]:
    """Return the JAX function of an in-place callback; `details` are further fields of `HostCallback`."""
    check_callable(callback, kind.name, "callback")
    expected = ResultShape.of_dtypes(kind, callback, result_shape_dtypes)
    check_method(kind, callback, vmap_method, EXTERNAL_METHODS)
    for aval in expected.avals:
        if jax.dtypes.itemsize_bits(aval.dtype) < 8:
            raise packed(kind, callback, aval.dtype)

    def call(*args: Any, **kwargs: Any) -> Any:
        return bind(
            kind,
            callback,
            (args, kwargs),
            expected,
            vmap_method=vmap_method,
            aliases=_checked(kind, callback, aliases, jax.tree_util.tree_leaves((args, kwargs)), expected),
            command_buffer=bool(command_buffer),
            **details,
        )

    return call


def _checked(
    kind: Kind, function: Any, aliases: Any, leaves: Sequence[Any], expected: ResultShape
) -> tuple[tuple[int, int], ...]:
    """Return the aliases in order, after checking that each pair can share memory.

    The user's numbers count all leaves. The returned numbers count the primitive's operands, without float0 leaves.
    """
    numbers = itertools.count()
    operands = [next(numbers) if travels(leaf) else None for leaf in leaves]
    checked: list[tuple[int, int]] = []
    for position, result in _pairs(kind, function, aliases):

        def wrong(why: str, position: int = position, result: int = result) -> ValueError:
            mapping = f"input_output_aliases contains the mapping '{position}:{result}'"
            return ValueError(f"{subject(kind.name, function)}: {mapping}{why}")

        if not 0 <= position < len(leaves):
            raise wrong(f" with input index {position} outside the range [0, {len(leaves)}).")
        count = len(expected.avals)
        if not 0 <= result < count:
            raise wrong(f" with output index {result} outside the range [0, {count}).")
        operand = operands[position]
        if operand is None:
            raise wrong(
                f", but input {position} is a float0 leaf. It has no value and does not travel to the device, "
                "so it has no memory to share. Drop this mapping; the numbers of the others stay, since they count "
                "all leaves."
            )
        aval_in, aval_out = jax.typeof(as_array(kind, function, leaves[position])), expected.avals[result]
        # Read as a result shape, so that a typed PRNG key becomes its words, as in `expected`.
        like = ResultShape.of_dtypes(kind, function, jax.ShapeDtypeStruct(aval_in.shape, aval_in.dtype))
        found = (like.avals[0].shape, like.avals[0].dtype, like.keys[0])
        if found != (aval_out.shape, aval_out.dtype, expected.keys[result]):
            raise wrong(
                f" referring to an input with abstract value {aval_in.str_short()} and an output with a "
                f"different abstract value {aval_out.str_short()}."
            )
        if any(result == other for _, other in checked):
            raise wrong(f", but output {result} shares its memory with another input already.")
        checked.append((operand, result))
    return tuple(checked)


def _pairs(kind: Kind, function: Any, aliases: Any) -> list[tuple[int, int]]:
    """Return the pairs of `input_output_aliases`, in order."""
    if aliases is None:
        return []
    if not isinstance(aliases, Mapping):
        raise TypeError(
            f"{subject(kind.name, function)}: input_output_aliases must be a dict from the number of an input to the "
            f"number of an output, got {shown(aliases)} of {type(aliases)}."
        )
    try:
        return sorted((operator.index(operand), operator.index(result)) for operand, result in aliases.items())
    except TypeError:
        raise TypeError(
            f"{subject(kind.name, function)}: input_output_aliases must map integers to integers, got {shown(aliases)}."
        ) from None
