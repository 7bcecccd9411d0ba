"""The frames of hostcb and JAX in tracebacks, which do not help a user: left out where hostcb raises on purpose (H32).

`JAX_TRACEBACK_FILTERING=off` keeps them, as it keeps JAX's own. An error that hostcb did not mean to raise keeps its
whole traceback, since that is what a report of the bug needs.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

import jax

from .._spec.naming import JAX, PACKAGE
from .callback_exception import CallbackException

F = TypeVar("F", bound=Callable[..., Any])

_RAISE = dis.opmap["RAISE_VARARGS"]


def leave_out_frames(error: BaseException) -> None:
    """Let the traceback of an error that passes a public function end in the user's file.

    Called in the `except` block of the public function, which then raises the error again with a bare `raise`: that
    adds no frame.
    """
    # hostcb raises a CallbackException by no statement.
    meant = isinstance(error, (jax.errors.JaxRuntimeError, CallbackException)) or _is_meant(error.__traceback__)
    if _are_kept() or not meant:
        return
    _shorten(error, lambda file: not file.startswith((PACKAGE, JAX)))


def leaving_out_frames(function: F) -> F:
    """Wrap a function that a public one returns, so that its errors end in the user's file."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            leave_out_frames(error)
            raise

    return cast(F, wrapper)


def shorten_traceback(failure: BaseException) -> None:
    """Let the traceback of a user function's exception begin and end in the user's file."""
    # The class of the user's exception may refuse to have its traceback read or set.
    with contextlib.suppress(Exception):
        if not _are_kept():
            _shorten(failure, lambda file: not file.startswith((PACKAGE, JAX)))


def frames_around(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """Yield the file and the line of a frame and of those that called it."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _are_kept() -> bool:
    return getattr(jax.config, "jax_traceback_filtering", None) == "off"


def _is_meant(traceback: TracebackType | None) -> bool:
    """Return whether the innermost frame is the user's, or raises by a statement of hostcb."""
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    if code.co_filename.startswith(PACKAGE):
        return code.co_code[traceback.tb_lasti] == _RAISE
    return not code.co_filename.startswith(JAX)


def _shorten(error: BaseException, is_shown: Callable[[str], bool]) -> None:
    traceback, entries = error.__traceback__, []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    shown: TracebackType | None = None
    for each in reversed(entries):
        if is_shown(each.tb_frame.f_code.co_filename):
            shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = shown
