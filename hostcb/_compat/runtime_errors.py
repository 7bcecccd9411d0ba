"""Gives an error of a computation that a runtime's thread has ended hostcb's own text, and tells when it comes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax

_JAX = os.path.dirname(jax.__file__) + os.sep
_HOSTCB = os.path.dirname(os.path.dirname(__file__)) + os.sep


def watch_errors(own_words: Callable[[str], str | None], seen: Callable[[str], None]) -> None:
    """Let a `JaxRuntimeError` with hostcb's words have these alone, and call `seen` with them.

    The runtime makes the exception, of its words and hostcb's, when the program asks for a result. `seen` is not called
    for hostcb's own waiting. If the class cannot be changed, the exception has all words, and nothing is seen.

    Args:
        own_words: returns hostcb's words in a text; None if it has none.
        seen: is called when an error with such words comes to the program.
    """
    made: Any = jax.errors.JaxRuntimeError
    initialize = made.__init__

    def __init__(self: BaseException, *args: Any, **named: Any) -> None:  # noqa: N807
        own = own_words(args[0]) if args and isinstance(args[0], str) else None
        if own is None:
            initialize(self, *args, **named)
            return
        # With the runtime's code, which comes after its text.
        initialize(self, own, *args[1:], **named)
        # What is raised here would come in place of the computation's error.
        with contextlib.suppress(Exception):
            if not _hostcb_waits(sys._getframe(1)):
                seen(own)

    with contextlib.suppress(TypeError):
        made.__init__ = __init__


def _hostcb_waits(frame: FrameType | None) -> bool:
    """Return whether the innermost frame that is not of JAX is of hostcb."""
    while frame is not None and frame.f_code.co_filename.startswith(_JAX):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_HOSTCB)
