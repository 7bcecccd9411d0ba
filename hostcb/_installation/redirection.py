"""The code that hostcb puts into JAX's own callbacks, and the functions that this code calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import CodeType
from typing import Any

from .. import _compat, debug
from .._api.buffers import buffer_callback
from .._api.external import io_callback, pure_callback
from .._api.jax_arrays import JaxArrays
from .._runtime.failures import ReportsFailures


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


@dataclasses.dataclass(frozen=True)
class _AsInJax(JaxArrays, ReportsFailures):
    """Gives a function what JAX's callback of this name gives it, and logs its failures as that does."""

    name: str

    def report(self, exception: BaseException) -> None:
        _compat.log_failure(self.name, exception)


def _as_in_jax(function: Any, name: str) -> Any:
    # What is no function is refused further on.
    return _AsInJax(function, name) if callable(function) else function


def _pure_callback(callback: Any, *args: Any, **kwargs: Any) -> Any:
    return pure_callback(_as_in_jax(callback, "pure_callback"), *args, **kwargs)


def _io_callback(callback: Any, *args: Any, **kwargs: Any) -> Any:
    return io_callback(_as_in_jax(callback, "io_callback"), *args, **kwargs)


def _debug_callback(callback: Any, *args: Any, ordered: bool, partitioned: bool, **kwargs: Any) -> Any:
    name = "debug.callback"
    if callback is not None:
        return debug.callback(_as_in_jax(callback, name), *args, ordered=ordered, partitioned=partitioned, **kwargs)
    # The two-call form, which has no arguments yet; hostcb refuses them.
    two_calls: Any = debug.callback
    bind = two_calls(None, *args, ordered=ordered, partitioned=partitioned, **kwargs)
    return lambda callback, /, *args, **kwargs: bind(_as_in_jax(callback, name), *args, **kwargs)


_OURS: dict[str, Callable[..., Any]] = {
    "pure_callback": _pure_callback,
    "io_callback": _io_callback,
    "debug.callback": _debug_callback,
    "debug.print": debug.print,
    "buffer_callback": buffer_callback,
}
