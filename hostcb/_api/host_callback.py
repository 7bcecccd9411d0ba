"""`id_tap`, `id_print` and `call`: host_callback's three functions (H1, H2, H3)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, overload

import jax

from .._errors.frames import leave_out_frames
from .._primitive.batching import Method, check_method
from .._primitive.binding import bind, is_no_array, tap_of_one_array
from .._primitive.primitive import host_callback_p
from .._primitive.shape_functions import results_of
from .._spec import flags
from .._spec.failure_policy import OnError, check_policy
from .._spec.kinds import CALL, PRINTING_TAP, TAP, Kind
from .._spec.naming import check_callable, shown, shows_tracer
from .._spec.options import refuse_misspelled
from .._spec.placement import position
from .._spec.shapes import ResultShape
from .._spec.signatures import check_signature
from .printing import Printer, as_pytree

if TYPE_CHECKING:
    from .type_hints import CallWithDevice, R, Refused, Shape, Stream, T, Tap, TapWithDevice, Transforms

_BARRIER: OnError = "barrier"
_PRINT_OPTIONS = ("result", "tap_with_device", "device_index", "output_stream", "threshold", "on_error")


@overload
def id_tap(
    tap_func: Callable[[Any, Transforms], Coroutine[Any, Any, Any]],
    arg: object,
    *,
    result: object = None,
    tap_with_device: bool = False,
    device_index: int = 0,
    on_error: OnError = "barrier",
) -> Refused: ...


@overload
def id_tap(
    tap_func: Tap,
    arg: T,
    *,
    result: None = None,
    tap_with_device: Literal[False] = False,
    device_index: int = 0,
    on_error: OnError = "barrier",
) -> T: ...


@overload
def id_tap(
    tap_func: Tap,
    arg: object,
    *,
    result: R,
    tap_with_device: Literal[False] = False,
    device_index: int = 0,
    on_error: OnError = "barrier",
) -> R: ...


# A function for either value takes the device.
@overload
def id_tap(
    tap_func: TapWithDevice,
    arg: T,
    *,
    result: None = None,
    tap_with_device: bool,
    device_index: int = 0,
    on_error: OnError = "barrier",
) -> T: ...


@overload
def id_tap(
    tap_func: TapWithDevice,
    arg: object,
    *,
    result: R,
    tap_with_device: bool,
    device_index: int = 0,
    on_error: OnError = "barrier",
) -> R: ...


def id_tap(
    tap_func: Callable[..., Any],
    arg: Any,
    *,
    result: Any = None,
    tap_with_device: bool = False,
    device_index: int = 0,
    on_error: OnError = "barrier",
) -> Any:
    """Return `arg`, and send its value to `tap_func` on the host.

    The device does not wait for `tap_func`. On each device, taps and calls run in program order.

    Args:
        tap_func: called as `tap_func(arg, transforms)`, or with `device=` too if `tap_with_device`. It gets
            NumPy arrays in the tree of `arg`, and may keep them. `transforms` is a tuple of pairs such as
            `("batch", {"batch_dims": (0, None)})`, one for each vmap. Its result is ignored. The next `barrier_wait`
            raises its exception, and the computation goes on. `functools.partial` gives it further arguments.
        arg: a pytree of arrays or scalars of any shape and dtype; other leaves, such as strings, are given to the
            function as they are.
        result: if given, what `id_tap` returns in place of `arg`. It is not sent to the host.
        tap_with_device: pass `device=`, the `jax.Device` that the value comes from.
        device_index: under `jit` over a mesh, which of its devices hands over the (whole) value.
        on_error: what happens after `tap_func` has raised. In each case the failure is logged and the computation goes
            on. "barrier": the next `barrier_wait` raises it. "next_dispatch": the next dispatch of a program with
            callbacks raises it, in any thread, or else a barrier. "log": nothing raises it.

    Returns:
        `arg`, or `result` if given.

    Raises:
        TypeError: `tap_func` is not callable or takes other arguments, or `arg` has an array that no device
            can hold.
        ValueError: `device_index` is negative, the computation has fewer devices, or `on_error` is unknown.
        NotImplementedError: used in a `shard_map` that leaves some mesh axes to the compiler.

    Follows H1, and H4 to H7 under transformations. Example:

        >>> import jax, hostcb as hcb
        >>> @jax.jit
        ... def double(x):
        ...     return hcb.id_tap(lambda value, transforms: print("on the host:", value), 2 * x)
        >>> y = double(3.0); hcb.barrier_wait()
        on the host: 6.0
    """
    try:
        _warn_of_ad_transforms()
        if type(device_index) is int and device_index == 0 and tap_with_device is False and on_error is _BARRIER:
            callback = tap_of_one_array(TAP, tap_func, arg)
            if callback is not None:
                (tapped,) = host_callback_p.bind(
                    arg, callback=callback, transforms=(), result_avals=(), device_index=0, vmap_method=None
                )
                return tapped if result is None else result
        check_callable(tap_func, TAP.name, "tap_func")
        check_signature(TAP, tap_func, bool(tap_with_device))
        return _tap(TAP, tap_func, arg, result, tap_with_device, device_index, on_error)
    except Exception as error:
        leave_out_frames(error)
        raise


@overload
def id_print(
    arg: T,
    *,
    result: None = None,
    tap_with_device: bool = False,
    device_index: int = 0,
    output_stream: Stream | None = None,
    threshold: int | None = None,
    on_error: OnError = "barrier",
    **kwargs: object,
) -> T: ...


@overload
def id_print(
    arg: object,
    *,
    result: R,
    tap_with_device: bool = False,
    device_index: int = 0,
    output_stream: Stream | None = None,
    threshold: int | None = None,
    on_error: OnError = "barrier",
    **kwargs: object,
) -> R: ...


def id_print(
    arg: Any,
    *,
    result: Any = None,
    tap_with_device: bool = False,
    device_index: int = 0,
    output_stream: Stream | None = None,
    threshold: int | None = None,
    on_error: OnError = "barrier",
    **kwargs: object,
) -> Any:
    """Return `arg`, and print its value on the host.

    The keyword arguments come first, on one line as `name: value` in the order of their names, with `transforms:` and
    `device:` among them where they apply; then the value. Prints are never mixed with each other.

    Args:
        arg: a pytree of arrays, scalars or other objects, which are printed unchanged. Tuples print as `( a b )`,
            lists as `[ a b ]`, dicts as `{ k=v }`.
        result: if given, what `id_print` returns in place of `arg`. It is not sent to the host.
        tap_with_device: print the device that the value comes from.
        device_index: under `jit` over a mesh, which of its devices hands over the (whole) value.
        output_stream: an object with a `write` method for the text; standard output by default.
        threshold: arrays with more elements are summarised, as in `numpy.array2string`; 1024 by default.
        on_error: as in `id_tap`, for example if `output_stream` cannot be written to.
        **kwargs: labels to print before the value.

    Returns:
        `arg`, or `result` if given.

    Raises:
        TypeError: `output_stream` has no `write`, a label is a traced value, or `arg` has an array that no
            device can hold.
        ValueError, NotImplementedError: as `id_tap`.

    Follows H2. Example:

        >>> import jax.numpy as jnp, hostcb as hcb
        >>> _ = hcb.id_print((jnp.arange(3), jnp.float32(0.5)), what="state"); hcb.barrier_wait()
        what: state
        ( [0 1 2] 0.5 )
    """
    try:
        if output_stream is not None and not callable(getattr(output_stream, "write", None)):
            raise TypeError(
                f"id_print: output_stream must have a write method, got {shown(output_stream)} of "
                f"{type(output_stream)}."
            )
        refuse_misspelled("id_print", kwargs, _PRINT_OPTIONS)
        for name, value in kwargs.items():
            if isinstance(value, jax.core.Tracer) or (isinstance(value, str) and shows_tracer(value)):
                raise TypeError(
                    f"id_print: the label {name!r} is {shown(value)}, whose value is not known yet, and labels are "
                    f"printed as they are. Print it in the value: id_print(dict({name}=…))."
                )
        printer = Printer(output_stream, threshold, tuple(sorted(kwargs.items())))
        _warn_of_ad_transforms()
        return _tap(PRINTING_TAP, printer, as_pytree(arg), result, tap_with_device, device_index, on_error)
    except Exception as error:
        leave_out_frames(error)
        raise


@overload
def call(
    callback_func: Callable[[Any], Any],
    arg: object,
    *,
    result_shape: Shape | complex,
    call_with_device: Literal[False] = False,
    device_index: int = 0,
    vmap_method: Method | None = None,
) -> jax.Array: ...


@overload
def call(
    callback_func: Callable[[Any], Any],
    arg: object,
    *,
    result_shape: Any = None,
    call_with_device: Literal[False] = False,
    device_index: int = 0,
    vmap_method: Method | None = None,
) -> Any: ...


@overload
def call(
    callback_func: CallWithDevice,
    arg: object,
    *,
    result_shape: Shape | complex,
    call_with_device: bool,
    device_index: int = 0,
    vmap_method: Method | None = None,
) -> jax.Array: ...


@overload
def call(
    callback_func: CallWithDevice,
    arg: object,
    *,
    result_shape: Any = None,
    call_with_device: bool,
    device_index: int = 0,
    vmap_method: Method | None = None,
) -> Any: ...


def call(
    callback_func: Callable[..., Any],
    arg: Any,
    *,
    result_shape: Any = None,
    call_with_device: bool = False,
    device_index: int = 0,
    vmap_method: Method | None = None,
) -> Any:
    """Call `callback_func` on the host with the value of `arg`, and return its result to the device.

    Args:
        callback_func: called as `callback_func(arg)`, or with `device=` too if `call_with_device`, with NumPy arrays
            in the tree of `arg`. It must return a pytree of arrays or scalars that matches `result_shape` in tree,
            shapes and dtypes (with x64 off, 64-bit NumPy results are narrowed as everywhere in JAX).
        arg: a pytree of arrays or scalars of any shape and dtype; other leaves, such as strings, are given to the
            function as they are.
        result_shape: a pytree of scalars, arrays or anything with `shape` and `dtype`; `None` or `()` for no result. Or
            a function that makes one from `arg`, in which it gets each array as a `jax.ShapeDtypeStruct`.
        call_with_device: pass `device=`, the `jax.Device` that the call comes from.
        device_index: under `jit` over a mesh, which of its devices makes the call; its result goes to all of them.
        vmap_method: how to batch the call: "sequential", "sequential_unrolled" (a call for each element),
            "expand_dims" or "broadcast_all" (one call with a leading axis on every operand and result). Without it,
            vmap is refused.

    Returns:
        The result, as JAX arrays.

    Raises:
        TypeError: `callback_func` is not callable or takes other arguments, or `arg` has an array that no device
            can hold.
        ValueError: `result_shape` is no shape or asks for 64 bits while x64 is off, `vmap_method` is unknown,
            `device_index` is negative, or the computation has fewer devices.
        NotImplementedError: differentiated, batched without `vmap_method`, or used in a `shard_map` that leaves some
            mesh axes to the compiler.
        jax.errors.JaxRuntimeError: when the computation runs, if the callback fails or its result does not match. The
            text names the callback, what was expected, and why it failed; `barrier_wait` reports it too.

    Follows H3, H8 and H15. Example:

        >>> import jax, numpy as np, hostcb as hcb
        >>> def eigenvalues(m):
        ...     return np.linalg.eigvalsh(m)
        >>> @jax.jit
        ... def largest(m):
        ...     return hcb.call(eigenvalues, m, result_shape=jax.ShapeDtypeStruct(m.shape[:-1], m.dtype))[-1]
        >>> float(largest(np.diag([1.0, 3.0, 2.0]).astype(np.float32)))
        3.0
    """
    try:
        check_callable(callback_func, CALL.name, "callback_func")
        check_signature(CALL, callback_func, bool(call_with_device))
        check_method(CALL, callback_func, vmap_method)
        return bind(
            CALL,
            callback_func,
            arg,
            results_of(CALL, callback_func, result_shape, ResultShape.of),
            place=position(CALL, callback_func, device_index),
            vmap_method=vmap_method,
            is_static=is_no_array,
            with_device=bool(call_with_device),
        )
    except Exception as error:
        leave_out_frames(error)
        raise


def _tap(
    kind: Kind, function: Any, arg: Any, result: Any, with_device: bool, device_index: int, on_error: OnError
) -> Any:
    check_policy(kind, function, on_error)
    tapped = bind(
        kind,
        function,
        arg,
        place=position(kind, function, device_index),
        is_static=is_no_array,
        with_device=bool(with_device),
        on_error=None if on_error == _BARRIER else on_error,
    )
    return tapped if result is None else result


def _warn_of_ad_transforms() -> None:
    if flags.ad_transforms.value:
        warnings.warn(
            "The flag jax_host_callback_ad_transforms is for temporary backwards compatibility: the behaviour that "
            "it enables will be removed. Tap tangents with custom_jvp and cotangents with custom_vjp instead.",
            FutureWarning,
            stacklevel=3,
        )
