"""Find from the current thread's stack whether it is inside a handler or a user function.

A record of our own could be wrong: an interrupt may come between any two steps of its update, and a signal handler or a
finalizer may run programs in the middle of one. The stack is always right, but a walk costs 0.15 microseconds a frame.
So `Frame` has a record that may say too much and never too little, and a function walks the stack where the record is
not empty.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

from .thread_states import is_pythons, keeper

F = TypeVar("F", bound=Callable[..., Any])

# The code of handlers, and of functions that run user functions. By id, since hashing code is slow.
_handlers: dict[int, CodeType] = {}
_callbacks: dict[int, CodeType] = {}


def called_by_runtime(handler: F) -> F:
    """Mark a handler: the program that calls it cannot go on before it returns.

    `blocked_programs` finds the program in the handler's local variables, as `program` or `host.program`.
    """
    code: CodeType = handler.__code__
    _handlers[id(code)] = code
    return handler


def runs_callbacks(function: F) -> F:
    """Mark a function that runs a user function. If the runtime calls it directly, mark it as a handler too."""
    code: CodeType = function.__code__
    _callbacks[id(code)] = code
    return function


class Frame:
    """The state of one thread. Handlers change it in place, since a context manager would cost as much as a tap."""

    __slots__ = ("depth", "execution", "pending")

    def __init__(self) -> None:
        # The number of user functions on this thread's stack. After an interrupt it may be too high, never too low.
        self.depth = 0
        # The innermost execution that this thread is dispatching. After an interrupt it may have returned.
        self.execution: Any = None
        # The errors that dispatches in C++ of this thread will raise at their end, or None; see `postponed`.
        self.pending: Any = None


class _Running(threading.local):
    # Whether Python started the thread. A thread of the runtime dispatches only from inside a callback.
    thread_is_pythons = True

    def __init__(self) -> None:
        # First of all: a finalizer that comes in the middle of this needs it.
        self.frame = Frame()
        # This runs in the first callback of each thread, and again only if the thread's state is lost.
        keeper.keep()
        self.thread_is_pythons = is_pythons()


running = _Running()


def inside_callback(innermost: FrameType | None = None) -> bool:
    """Return whether the current thread is inside a user function, or in the function that runs it.

    If `innermost` is given, only the frames from it outwards count.
    """
    if not running.frame.depth:
        return False
    if runs_in(innermost or sys._getframe(1)):
        return True
    running.frame.depth = 0
    return False


def runs_in(frame: FrameType | None) -> bool:
    """Return whether a stack, of any thread, has a function that runs user functions."""
    while frame is not None:
        if id(frame.f_code) in _callbacks:
            return True
        frame = frame.f_back
    return False


def threads_in_functions() -> list[int]:
    """Return the threads that run a function of a user."""
    return [thread for thread, frame in sys._current_frames().items() if runs_in(frame)]


def inside_handler() -> bool:
    """Return whether the thread is inside a user function or a handler, which a signal handler may have interrupted.

    A thread that Python started is in a handler only while it dispatches. That holds for tracked executions; a handler
    of an untracked one, of pure callbacks, holds nothing up that another program waits for.
    """
    around = running.frame
    if not around.depth and around.execution is None and running.thread_is_pythons:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        number = id(frame.f_code)
        if number in _callbacks or number in _handlers:
            return True
        frame = frame.f_back
    return False


def locals_of(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield the local variables of each frame of `function` on the current thread's stack."""
    code = function.__code__
    for frame in _stack():
        if frame.f_code is code:
            yield frame.f_locals


def blocked_programs() -> Iterator[Any]:
    """Yield the programs of the handlers on this thread's stack; they cannot go on before the handlers return."""
    for frame in _stack():
        if id(frame.f_code) in _handlers:
            names = frame.f_locals
            program = names.get("program")
            if program is None:
                program = getattr(names.get("host"), "program", None)
            if program is not None:
                yield program


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
