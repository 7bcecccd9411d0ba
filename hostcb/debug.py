"""`hostcb.debug.callback` and `hostcb.debug.print`: JAX's own two, on this machinery (X4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, overload

import numpy as np

from ._api.formatting import FormatPrinter, MissingNameError, MissingPositionError, check_format  # noqa: F401
from ._api.jax_arrays import as_asked
from ._errors.frames import leave_out_frames, leaving_out_frames
from ._primitive.binding import bind, is_no_value
from ._spec.failure_policy import OnError, check_policy
from ._spec.kinds import DEBUG, ORDERED_DEBUG, ORDERED_PRINT, PRINT
from ._spec.naming import check_callable, shown
from ._spec.options import check_truth

if TYPE_CHECKING:
    from ._api.type_hints import P

__all__ = ("callback", "print")


# With up to two operands, a type checker sees whether the function takes the arguments. The types of the operands need
# not match: the function gets NumPy arrays where the program has JAX arrays. Beside options nothing is checked, since
# Python has no type for the arguments of a function with other ones among them.
@overload
def callback(callback: Callable[..., object], a: Any, b: Any, c: Any, /, *args: Any, **kwargs: Any) -> None: ...


@overload
def callback(callback: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None: ...


@overload
def callback(callback: Callable[Concatenate[Any, P], object], a: Any, /, *args: P.args, **kwargs: P.kwargs) -> None: ...


@overload
def callback(
    callback: Callable[Concatenate[Any, Any, P], object], a: Any, b: Any, /, *args: P.args, **kwargs: P.kwargs
) -> None: ...


@overload
def callback(
    callback: Callable[..., object], *args: Any, ordered: bool, partitioned: bool = False, **kwargs: Any
) -> None: ...


@overload
def callback(callback: Callable[..., object], *args: Any, partitioned: bool, **kwargs: Any) -> None: ...


@overload
def callback(
    *, ordered: bool = False, partitioned: bool = False, on_error: OnError | None = None
) -> Callable[..., None]: ...


# The options are no arguments of the function, which mypy cannot know.
def callback(  # type: ignore[misc]
    callback: Callable[..., Any] | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    **kwargs: Any,
) -> Callable[..., None] | None:
    """Call a function on the host that changes nothing in the computation, as `jax.debug.callback` does.

    It shows what JAX does: the function is called as often as JAX runs the code around it, for each element under vmap,
    with primal values under differentiation, and twice in a differentiated checkpoint.

    It can be written in two ways: `callback(function, *args, ordered=True, **kwargs)`, or, so that options and the
    function's keyword arguments do not mix, `callback(ordered=True)(function, *args, **kwargs)`.

    Args:
        callback: called as `callback(*args, **kwargs)` with NumPy arrays of its own (or `jax.Array`s, see
            `hostcb.jax_arrays`). What it returns is ignored.
        *args: pytrees of arrays or scalars; other leaves, such as strings, are given to the function as they are.
        ordered: keep the program's order on each device, together with `id_tap`, `call` and ordered `io_callback`s.
        partitioned: under jit over a mesh, call on each device with its shard, rather than once with the whole
            operands, for which JAX has to gather them.
        **kwargs: keyword arguments for the function, handled like `args`. In the second way alone there is one more
            option: `callback(on_error="log")(function, *args)`. With a policy of `id_tap`, a failure does not end the
            computation.

    Returns:
        None; without `callback`, a function that takes the callback and its arguments.

    Raises:
        TypeError: `callback` is not callable, or there are arguments without a callback.
        ValueError: `on_error` is unknown.
        NotImplementedError: ordered in a `shard_map` that leaves some mesh axes to the compiler, or ordered and
            partitioned under jit over a mesh.
        jax.errors.JaxRuntimeError: when the computation runs, if the function raises and there is no `on_error`.
            `barrier_wait` reports it too.

    Follows X4. Example:

        >>> import hostcb, jax
        >>> seen = []
        >>> _ = jax.vmap(lambda x: hostcb.debug.callback(lambda x: seen.append(float(x)), x))(jax.numpy.arange(3.0))
        >>> seen
        [0.0, 1.0, 2.0]
    """

    def bind_callback(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        check_truth("debug.callback", ordered=ordered, partitioned=partitioned)
        kind = ORDERED_DEBUG if ordered else DEBUG
        check_callable(function, kind.name, "callback")
        if on_error is not None:
            check_policy(kind, function, on_error)
        bind(
            kind,
            as_asked(function),
            (args, kwargs),
            is_static=is_no_value,
            partitioned=bool(partitioned),
            on_error=on_error,
        )

    # In the one-call form all keyword arguments but JAX's are the function's.
    on_error = kwargs.pop("on_error", None) if callback is None else None
    try:
        if callback is not None:
            bind_callback(callback, *args, **kwargs)
            return None
        _check_two_calls("debug.callback", args, kwargs)
    except Exception as error:
        leave_out_frames(error)
        raise
    return leaving_out_frames(bind_callback)


@overload
def print(  # noqa: A001 - JAX's name
    fmt: str,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> None: ...


@overload
def print(  # noqa: A001 - JAX's name
    *,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    on_error: OnError | None = None,
) -> Callable[Concatenate[str, ...], None]: ...


def print(  # noqa: A001
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Callable[..., None] | None:
    """Print values on the host, as `jax.debug.print` does.

    Like `debug.callback`, it can also be written in two calls: `print(ordered=True)("{x}", x=x)`.

    Args:
        fmt: a format string, as for `str.format` (so `{{` prints a brace, whether there are fields or not). Not an
            f-string: the values are not known yet.
        *args: values for `fmt` by position: pytrees of arrays, scalars, or other objects, which are printed unchanged.
        ordered: as for `debug.callback`.
        partitioned: as for `debug.callback`.
        skip_format_check: do not check while tracing that the arguments match. Then the arguments of a string without
            fields are printed after it.
        **kwargs: values for `fmt` by name; in the two-call form also `on_error`, as for `debug.callback`.

    Returns:
        None; without `fmt`, a function that takes the format string and its arguments.

    Raises:
        TypeError: `fmt` is no string, or there are arguments without a format string.
        ValueError: `on_error` is unknown, or the string is malformed or does not match the arguments; where an argument
            is missing, the error is an `IndexError` or a `KeyError` too. Raised while tracing.
        NotImplementedError: as for `debug.callback`.

    Follows X4. Example:

        >>> import hostcb, jax
        >>> @jax.jit
        ... def double(x):
        ...     hostcb.debug.print("{what} is {x:.1f}", what="x", x=x)
        ...     return 2 * x
        >>> y = double(3.0)
        x is 3.0
    """

    def bind_print(fmt: str, /, *args: Any, **kwargs: Any) -> None:
        check_truth("debug.print", ordered=ordered, partitioned=partitioned, skip_format_check=skip_format_check)
        if not skip_format_check:
            check_format(fmt, args, kwargs)
        printer = FormatPrinter(fmt, tuple(np.get_printoptions().items()))
        kind = ORDERED_PRINT if ordered else PRINT
        if on_error is not None:
            check_policy(kind, printer, on_error)
        bind(kind, printer, (args, kwargs), is_static=is_no_value, partitioned=bool(partitioned), on_error=on_error)

    on_error = kwargs.pop("on_error", None) if fmt is None else None
    try:
        if fmt is not None:
            bind_print(fmt, *args, **kwargs)
            return None
        _check_two_calls("debug.print", args, kwargs)
    except Exception as error:
        leave_out_frames(error)
        raise
    return leaving_out_frames(bind_print)


def _check_two_calls(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args or kwargs:
        raise TypeError(
            f"{name} received unexpected arguments in the two-call form: args={shown(args)} kwargs={shown(kwargs)}. "
            "Options go into the first call, what is to be called or printed into the second."
        )
