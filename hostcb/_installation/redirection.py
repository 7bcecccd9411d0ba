"""The code that hostcb puts into JAX's own callbacks, and the functions that this code calls."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from .. import _compat, debug
from .._api.buffers import in_place
from .._api.external import bind_external
from .._errors.frames import leaving_out_frames
from .._primitive.binding import bind, is_no_value
from .._spec.kinds import BUFFER, BUFFER_WITH_EFFECT, DEBUG, IO, ORDERED_DEBUG, ORDERED_IO, ORDERED_PRINT, PRINT, PURE
from .._spec.naming import check_callable
from .as_in_jax import (
    BUFFER_CALLBACK,
    DEBUG_CALLBACK,
    IO_CALLBACK,
    PURE_CALLBACK,
    debugging,
    marking_keys,
    returning,
    taken,
)
from .printing import Printer, check_arguments


class _Donors:
    """Functions with the signatures of JAX's, whose code runs in JAX's functions.

    There the names of JAX's modules are in scope, and those of this module are not: hence the imports.
    """

    @staticmethod
    def pure_callback(  # type: ignore[no-untyped-def]
        callback, result_shape_dtypes, *args, sharding=None, vmap_method=None, **kwargs
    ):
        from hostcb._installation.redirection import serving

        return serving("pure_callback")(
            callback, result_shape_dtypes, *args, sharding=sharding, vmap_method=vmap_method, **kwargs
        )

    @staticmethod
    def io_callback(  # type: ignore[no-untyped-def]
        callback, result_shape_dtypes, *args, sharding=None, ordered=False, **kwargs
    ):
        from hostcb._installation.redirection import serving

        return serving("io_callback")(
            callback, result_shape_dtypes, *args, sharding=sharding, ordered=ordered, **kwargs
        )

    @staticmethod
    def debug_callback(  # type: ignore[no-untyped-def]
        callback=None, *args, ordered=False, partitioned=False, **kwargs
    ):
        from hostcb._installation.redirection import serving

        return serving("debug.callback")(callback, *args, ordered=ordered, partitioned=partitioned, **kwargs)

    @staticmethod
    def debug_print(  # type: ignore[no-untyped-def]
        fmt=None, *args, ordered=False, partitioned=False, skip_format_check=False, _use_logging=False, **kwargs
    ):
        from hostcb._installation.redirection import serving

        # `jax.debug.log` logs under the name and the line of the user's module, which JAX alone finds out.
        return serving("debug.print", _use_logging)(
            fmt,
            *args,
            ordered=ordered,
            partitioned=partitioned,
            skip_format_check=skip_format_check,
            **({"_use_logging": True} if _use_logging else {}),
            **kwargs,
        )

    @staticmethod
    def buffer_callback(  # type: ignore[no-untyped-def]
        callback,
        result_shape_dtypes,
        *,
        has_side_effect=False,
        vmap_method=None,
        input_output_aliases=None,
        command_buffer_compatible=False,
    ):
        from hostcb._installation.redirection import serving

        return serving("buffer_callback")(
            callback,
            result_shape_dtypes,
            has_side_effect=has_side_effect,
            vmap_method=vmap_method,
            input_output_aliases=input_output_aliases,
            command_buffer_compatible=command_buffer_compatible,
        )


CODES: dict[str, CodeType] = {
    "pure_callback": _Donors.pure_callback.__code__,
    "io_callback": _Donors.io_callback.__code__,
    "debug.callback": _Donors.debug_callback.__code__,
    "debug.print": _Donors.debug_print.__code__,
    "buffer_callback": _Donors.buffer_callback.__code__,
}


def serving(name: str, own: bool = False) -> Callable[..., Any]:
    """The function that serves a call of JAX's callback of this name: hostcb's, or JAX's own where it is needed."""
    return _compat.own_callback(name) if own or _compat.needs_own_callback() else _OURS[name]


@leaving_out_frames
def _pure_callback(callback: Any, shapes: Any, *args: Any, sharding: Any, vmap_method: Any, **kwargs: Any) -> Any:
    function = returning(callback, shapes)
    args, kwargs = taken((args, kwargs))
    return bind_external(PURE, function, shapes, args, kwargs, sharding, vmap_method, **PURE_CALLBACK)


@leaving_out_frames
def _io_callback(callback: Any, shapes: Any, *args: Any, sharding: Any, ordered: Any, **kwargs: Any) -> Any:
    function, kind = returning(callback, shapes), ORDERED_IO if ordered else IO
    args, kwargs = taken((args, kwargs))
    return bind_external(kind, function, shapes, args, kwargs, sharding, None, **IO_CALLBACK)


def _debug_callback(callback: Any, *args: Any, ordered: bool, partitioned: bool, **kwargs: Any) -> Any:
    def bind_callback(callback: Any, /, *args: Any, **kwargs: Any) -> None:
        kind, function = ORDERED_DEBUG if ordered else DEBUG, debugging(callback)
        check_callable(function, kind.name, "callback")
        arguments = taken((args, kwargs), marking_keys)
        bind(kind, function, arguments, is_static=is_no_value, partitioned=bool(partitioned), **DEBUG_CALLBACK)

    return _in_one_or_two_calls(debug.callback, bind_callback, callback, args, kwargs)


def _debug_print(fmt: Any, *args: Any, ordered: bool, partitioned: bool, skip_format_check: bool, **kwargs: Any) -> Any:
    def bind_print(fmt: Any, /, *args: Any, **kwargs: Any) -> None:
        if not skip_format_check:
            check_arguments(fmt, args, kwargs)
        printer = Printer(fmt, tuple(np.get_printoptions().items()))
        kind = ORDERED_PRINT if ordered else PRINT
        bind(
            kind,
            debugging(printer),
            taken((args, kwargs), marking_keys),
            is_static=is_no_value,
            partitioned=bool(partitioned),
            **DEBUG_CALLBACK,
        )

    return _in_one_or_two_calls(debug.print, bind_print, fmt, args, kwargs)


def _in_one_or_two_calls(ours: Any, bind: Any, first: Any, args: Any, kwargs: Any) -> Any:
    if first is not None:
        return leaving_out_frames(bind)(first, *args, **kwargs)
    if args or kwargs:
        # It refuses them.
        ours(None, *args, **kwargs)
    return leaving_out_frames(bind)


@leaving_out_frames
def _buffer_callback(
    callback: Any,
    shapes: Any,
    *,
    has_side_effect: Any,
    vmap_method: Any,
    input_output_aliases: Any,
    command_buffer_compatible: Any,
) -> Any:
    kind = BUFFER_WITH_EFFECT if has_side_effect else BUFFER
    function = in_place(
        kind, callback, shapes, vmap_method, input_output_aliases, command_buffer_compatible, **BUFFER_CALLBACK
    )

    @leaving_out_frames
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = taken((args, kwargs))
        return function(*args, **kwargs)

    return call


_OURS: dict[str, Callable[..., Any]] = {
    "pure_callback": _pure_callback,
    "io_callback": _io_callback,
    "debug.callback": _debug_callback,
    "debug.print": _debug_print,
    "buffer_callback": _buffer_callback,
}
