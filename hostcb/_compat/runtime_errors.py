"""Tells when a program gets an error of a computation, also one that a runtime's thread has ended."""

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


def watch_errors(seen: Callable[[str], None]) -> None:
    """Call `seen` with the text of each `JaxRuntimeError` that comes to the program, and not to hostcb's own waiting.

    The runtime makes the exception when the program asks for a result. If the class cannot be changed, nothing is seen.
    """
    made: Any = jax.errors.JaxRuntimeError
    initialize = made.__init__

    def __init__(self: BaseException, *args: Any) -> None:  # noqa: N807
        initialize(self, *args)
        # What is raised here would come in place of the computation's error.
        with contextlib.suppress(Exception):
            if not _hostcb_waits(sys._getframe(1)):
                seen(str(self))

    with contextlib.suppress(TypeError):
        made.__init__ = __init__


def _hostcb_waits(frame: FrameType | None) -> bool:
    """Return whether the innermost frame that is not of JAX is of hostcb."""
    while frame is not None and frame.f_code.co_filename.startswith(_JAX):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_HOSTCB)
