"""`pure_callback` and `io_callback`: JAX's own two, on this machinery (X2, X3, X5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import jax

from .._errors.frames import leave_out_frames
from .._primitive.batching import EXTERNAL_METHODS, ExternalMethod, check_method
from .._primitive.binding import bind, is_no_array
from .._primitive.shape_functions import results_of
from .._spec.kinds import IO, ORDERED_IO, PURE, Kind
from .._spec.naming import check_callable
from .._spec.options import check_truth
from .._spec.placement import device_of
from .._spec.shapes import ResultShape
from .jax_arrays import as_asked

if TYPE_CHECKING:
    from .type_hints import Shape


@overload
def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Shape,
    *args: Any,
    sharding: jax.sharding.Sharding | None = None,
    vmap_method: ExternalMethod | None = None,
    **kwargs: Any,
) -> jax.Array: ...


@overload
def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: jax.sharding.Sharding | None = None,
    vmap_method: ExternalMethod | None = None,
    **kwargs: Any,
) -> Any: ...


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: jax.sharding.Sharding | None = None,
    vmap_method: ExternalMethod | None = None,
    **kwargs: Any,
) -> Any:
    """Call a pure function on the host, as `jax.pure_callback` does.

    The function counts as pure: JAX may drop the call if its result is not used, repeat it, or make it at another time
    than the program says.

    Args:
        callback: called as `callback(*args, **kwargs)` with NumPy arrays of its own (or `jax.Array`s, see
            `hostcb.jax_arrays`). Its result must match `result_shape_dtypes` in shapes and dtypes. It may have other
            containers, with the same number of leaves and the same dict keys.
        result_shape_dtypes: a pytree whose leaves have `shape` and `dtype`, such as `jax.ShapeDtypeStruct`, or a
            function that makes one from the arguments, in which it gets each array as a `jax.ShapeDtypeStruct`.
        *args: pytrees of arrays or scalars; other leaves, such as strings, are given to the function as they are.
        sharding: which device makes the call: a sharding of one device of the computation. The first by default.
        vmap_method: how to batch it. "sequential": a loop, with a call for each element; "sequential_unrolled": the
            same unrolled; "expand_dims": one call, in which every operand has a leading axis, of size 1 if it was not
            batched; "broadcast_all": the same, always of the batch's size; "legacy_vectorized": the same, without a
            leading axis for unbatched operands. Without a method, vmap is refused.
        **kwargs: keyword arguments for the callback, handled like `args`.

    Returns:
        The results as JAX arrays, in the tree of `result_shape_dtypes`.

    Raises:
        TypeError: `callback` is not callable, an argument has an array that no device can hold, or `sharding` is none.
        ValueError: `result_shape_dtypes` is no shape or asks for 64 bits while x64 is off, `vmap_method` is unknown,
            `sharding` names a device outside the computation; or the callback is differentiated, which needs
            `jax.custom_jvp` or `jax.custom_vjp`.
        NotImplementedError: batched without a method, `sharding` inside `pmap` or `shard_map`, or a `shard_map` that
            leaves some mesh axes to the compiler.
        jax.errors.JaxRuntimeError: when the computation runs, if the callback fails or its result does not match, with
            the callback's exception as `__cause__` where the program runs in the calling thread.

    Follows X2 and X5. Example:

        >>> import hostcb, jax, jax.numpy as jnp, numpy as np
        >>> def cube_root(x):
        ...     shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        ...     return hostcb.pure_callback(np.cbrt, shape, x, vmap_method="expand_dims")
        >>> print(jax.jit(jax.vmap(cube_root))(jnp.array([1.0, 8.0, 27.0])).round())
        [1. 2. 3.]
    """
    try:
        return bind_external(PURE, callback, result_shape_dtypes, args, kwargs, sharding, vmap_method, further=True)
    except Exception as error:
        leave_out_frames(error)
        raise


@overload
def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Shape,
    *args: Any,
    sharding: jax.sharding.Sharding | None = None,
    ordered: bool = False,
    **kwargs: Any,
) -> jax.Array: ...


@overload
def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: jax.sharding.Sharding | None = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any: ...


def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: jax.sharding.Sharding | None = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a function with side effects on the host, as `jax.experimental.io_callback` does.

    The function is called exactly once each time that the program comes to it, even if its result is not used. Unlike
    JAX's, it is also called in the body of a differentiated `scan`.

    Args:
        callback: as for `pure_callback`.
        result_shape_dtypes: as for `pure_callback`; `None` for no result.
        *args: as for `pure_callback`.
        sharding: which device makes the call: a sharding of one device of the computation. The first by default.
        ordered: keep the program's order on each device, together with `id_tap`, `call` and `debug` callbacks that are
            ordered. Otherwise the runtime may call in any order.
        **kwargs: keyword arguments for the callback, handled like `args`.

    Returns:
        The results as JAX arrays, in the tree of `result_shape_dtypes`.

    Raises:
        TypeError: `callback` is not callable, an argument has an array that no device can hold, or `sharding` is none.
        ValueError: `result_shape_dtypes` is no shape or asks for 64 bits while x64 is off, `sharding` names a device
            outside the computation, an argument is differentiated, or an ordered callback is batched.
        NotImplementedError: JAX could not call it exactly once: in a `cond` or `while_loop` with a batched predicate,
            and in a differentiated checkpoint. Also as `pure_callback`.
        jax.errors.JaxRuntimeError: when the computation runs, as `pure_callback`. `barrier_wait` reports it as well.

    Follows X3 and X5. Example:

        >>> import hostcb, jax, numpy as np
        >>> generator = np.random.default_rng(0)
        >>> def draw():
        ...     return generator.uniform(size=2).astype(np.float32)
        >>> shape = jax.ShapeDtypeStruct((2,), np.float32)
        >>> print(jax.jit(lambda: hostcb.io_callback(draw, shape))())
        [0.6369617  0.26978672]
    """
    try:
        check_truth("io_callback", ordered=ordered)
        kind = ORDERED_IO if ordered else IO
        return bind_external(kind, callback, result_shape_dtypes, args, kwargs, sharding, None, further=True)
    except Exception as error:
        leave_out_frames(error)
        raise


def bind_external(
    kind: Kind,
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sharding: Any,
    vmap_method: str | None,
    further: bool = False,
    **details: Any,
) -> Any:
    """Bind the primitive of a pure or IO callback.

    `further` says whether it accepts what JAX's own refuses (X7, X8); `details` are further fields of `HostCallback`.
    """
    check_method(kind, callback, vmap_method, EXTERNAL_METHODS)
    check_callable(callback, kind.name, "callback")
    read = ResultShape.of_dtypes
    expected = (
        results_of(kind, callback, result_shape_dtypes, read) if further else read(kind, callback, result_shape_dtypes)
    )
    return bind(
        kind,
        as_asked(callback),
        (args, kwargs),
        expected,
        place=device_of(kind, callback, sharding),
        vmap_method=vmap_method,
        is_static=is_no_array if further else None,
        **details,
    )
