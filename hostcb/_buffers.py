"""`buffer_callback`: a function that works in device memory (B1 to B5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ._batching import EXTERNAL_METHODS, check_method
from ._binding import bind, check_callable, packed
from ._kinds import BUFFER, BUFFER_WITH_EFFECT, Kind
from ._shapes import ResultShape


def buffer_callback(
    callback: Callable[..., None],
    result_shape_dtypes: Any,
    *,
    has_side_effect: bool = False,
    vmap_method: str | None = None,
    input_output_aliases: dict[int, int] | None = None,
    command_buffer_compatible: bool = False,
) -> Callable[..., Any]:
    """Make a JAX function of one that fills device memory in place, as `jax.experimental.buffer_callback` does.

    Nothing is copied, on CPU nor on GPU: the function gets the memory of operands and results as it is.

    Args:
        callback: called as `callback(ctx, out, *args, **kwargs)`. `ctx` has the `stage` of the execution and on GPU
            the `stream` that the work belongs on. `out` holds a writable buffer for each leaf of
            `result_shape_dtypes`, `args` and `kwargs` one for each operand. A buffer speaks `__array__` on CPU,
            `__cuda_array_interface__` on GPU and `__dlpack__` on both. It is only valid until the function returns:
            copy what you keep, with `np.array(buffer)`, since an array that `np.asarray(buffer)` gave and that lives
            on makes JAX mistake later buffers for this one (that of `np.from_dlpack(buffer)` does not). Operands must
            not be written to, except those that share their memory with a result. The function must write all results
            and return nothing.
        result_shape_dtypes: a pytree whose leaves have `shape` and `dtype`.
        has_side_effect: call even where no result is used, and exactly once each time that the program comes to it.
            Otherwise the function counts as pure.
        vmap_method: how to batch it, as for `pure_callback`; without it, vmap is refused.
        input_output_aliases: operands that share their memory with a result, as a dict from an operand's number to a
            result's, among all leaves. Both must have the same shape and dtype.
        command_buffer_compatible: on GPU, let the function be called once to record what it enqueues on the stream,
            and run the recording from then on.

    Returns:
        A function that takes pytrees of arrays, as positional and keyword arguments, and returns the results in the
        tree of `result_shape_dtypes`.

    Raises:
        TypeError: `callback` is not callable, an argument is no JAX value, or has a type of less than a byte.
        ValueError: `result_shape_dtypes` is no shape or asks for 64 bits while x64 is off, `vmap_method` is unknown, an
            alias names what is not there or unequal values, the platform has no such callbacks; or the callback is
            differentiated, which needs `jax.custom_jvp` or `jax.custom_vjp`.
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
    return in_place(
        BUFFER_WITH_EFFECT if has_side_effect else BUFFER,
        callback,
        ResultShape.of_dtypes(result_shape_dtypes),
        vmap_method,
        input_output_aliases,
        command_buffer_compatible,
    )


def in_place(
    kind: Kind,
    callback: Callable[..., None],
    expected: ResultShape,
    vmap_method: str | None,
    aliases: Mapping[int, int] | None,
    command_buffer: bool,
) -> Callable[..., Any]:
    """The JAX function of a callback that fills buffers."""
    check_callable(callback, kind, "callback")
    check_method(vmap_method, EXTERNAL_METHODS)
    for aval in expected.avals:
        if jax.dtypes.itemsize_bits(aval.dtype) < 8:
            raise packed(kind, aval.dtype)

    def call(*args: Any, **kwargs: Any) -> Any:
        results = bind(
            kind,
            callback,
            (args, kwargs),
            expected,
            vmap_method=vmap_method,
            aliases=_checked(aliases or {}, jax.tree_util.tree_leaves((args, kwargs)), expected),
            command_buffer=bool(command_buffer),
        )
        return expected.restore(results)

    return call


def _checked(aliases: Mapping[int, int], operands: Any, expected: ResultShape) -> tuple[tuple[int, int], ...]:
    """The aliases in order, each of two values that can be one."""
    checked: list[tuple[int, int]] = []
    for operand, result in sorted((int(operand), int(result)) for operand, result in aliases.items()):
        mapping = f"input_output_aliases contains the mapping '{operand}:{result}'"
        if not 0 <= operand < len(operands):
            raise ValueError(f"{mapping} with input index {operand} outside the range [0, {len(operands)}).")
        count = len(expected.avals)
        if not 0 <= result < count:
            raise ValueError(f"{mapping} with output index {result} outside the range [0, {count}).")
        given, wanted = jax.typeof(jnp.asarray(operands[operand])), expected.avals[result]
        # Typed keys are read as a result like them would be: their words travel.
        like = ResultShape.of_dtypes(jax.ShapeDtypeStruct(given.shape, given.dtype))
        found = (like.avals[0].shape, like.avals[0].dtype, like.keys[0])
        if found != (wanted.shape, wanted.dtype, expected.keys[result]):
            raise ValueError(
                f"{mapping} referring to an input with abstract value {given.str_short()} and an output with a "
                f"different abstract value {wanted.str_short()}."
            )
        if any(result == other for _, other in checked):
            raise ValueError(f"{mapping}, but output {result} shares its memory with another input already.")
        checked.append((operand, result))
    return tuple(checked)
