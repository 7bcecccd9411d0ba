"""Errors that JAX's fast dispatch raises only at its end: the whole protocol.

From its second run on, JAX dispatches a program without effects in C++, in a sixth of the time. Such a dispatch raises
an error of the computation as a `ValueError` without a cause, where the first run raised `JaxRuntimeError`. So hostcb
lets the computation end with zeros, and raises the error in place of the results:

1. Before its function, each handler asks `has_failed` whether another one of this dispatch has failed. Its operands may
   be zeros then. So it runs nothing, and `skip` fills its results with zeros.
2. A handler that fails fills its results with zeros (`clear`) and calls `postpone`, which keeps a `Pending` in
   `running.frame.pending`, sends the program's taps through Python, where 1. stops them, and sets the hook of
   `_compat.dispatch_end`. The handler returns as if it had not failed.
3. `postpone` returns False for a dispatch in Python, which raises the error itself, for a thread that dispatches
   nothing, and without the hook. Then the handler raises.
4. JAX calls the hook when a dispatch of this thread has ended. `_at_the_end` takes what has ended and raises the error:
   always of the same type, and with its cause. For programs with a token `executions` calls `raise_at_the_end` before
   that, so that no function of the user gets the zeros.
5. An interrupt may end a dispatch before its hook. Then the next operation of this thread raises the error with a note
   (`raise_what_is_left`), unless a barrier has reported it.

Which dispatch has ended? Returned zeros would be a wrong result. So the end of a dispatch raises the error unless it is
certainly the end of a nested dispatch, made by a signal handler, for example. A dispatch in C++ has no frame of its
own. The frame that called the handler should be the dispatching one, since programs with wrapped handlers are
dispatched in Python (`is_handler`). But a handler can be wrapped in ways that hostcb cannot see. So `Pending` keeps all
frames below the handler, with the instruction at which each one was.

`cpp_dispatch` says which programs may compute with zeros.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np

from ..._compat.dispatch_end import watch_dispatches
from ..._errors.failures import beside_cause, failure_log, shown_cause
from ..._spec.naming import PACKAGE
from ..._threads import thread_states
from ..._threads.running import running

if TYPE_CHECKING:
    from .programs import Program

LATE = (
    "hostcb: the callback failed in a computation that this thread started earlier. Its own dispatch was interrupted, "
    "or ended without this error, so what it returned may be zeros."
)


class Pending:
    """The error that a dispatch in C++ will raise at its end, after its handler with the frame `handler` failed."""

    def __init__(self, error: Exception, program: Program, handler: FrameType, failure: BaseException | None = None):
        self.error = error
        # What the function raised, which the barrier reports as well.
        self.failure = failure
        self.program = program
        self._handler = handler
        # One of these frames dispatches; it stays at its instruction until the dispatch ends. The innermost is first.
        self._callers = {frame: frame.f_lasti for frame in _outwards(handler.f_back)}
        self._reports = failure_log.reports

    def ends_with(self, dispatcher: FrameType | None) -> bool:
        """Return whether the dispatch made by the frame `dispatcher` is this one or a later one."""
        return dispatcher in self._callers or not self.is_around(dispatcher)

    def is_around(self, inner: FrameType | None) -> bool:
        """Return whether this dispatch seems to go on around `inner`, in a signal handler or a `__del__`."""
        for frame in _outwards(inner):
            if frame is self._handler:
                return True
            if frame in self._callers:
                return self.stands_at(frame)
        return False

    def late(self) -> Exception | None:
        """Return the error with a note, for another operation to raise; None if a barrier has already reported it."""
        if self._reports != failure_log.reports:
            return None
        self.error.add_note(LATE)
        return self.error

    def calls(self, handler: FrameType) -> list[FrameType] | None:
        """Return the frames by which this dispatch seems to call a handler of its program, or None."""
        wrappers: list[FrameType] = []
        for frame in _outwards(handler.f_back):
            if frame in self._callers:
                return wrappers if self.stands_at(frame) else None
            if frame is self._handler or _is_ours(frame):
                # A hostcb handler, or the hook, that was interrupted by a signal handler which runs the same program.
                return None
            wrappers.append(frame)
        return None

    def is_like(self, wrappers: list[FrameType]) -> bool:
        """Return whether the failed handler had the same wrappers, so that this dispatch certainly calls both."""
        return [frame.f_code for frame in wrappers] == [frame.f_code for frame in [*self._callers][: len(wrappers)]]

    def stands_at(self, frame: FrameType | None) -> bool:
        """Return whether `frame` is at the same instruction as when the handler failed, so its dispatch goes on."""
        return frame is not None and self._callers.get(frame) == frame.f_lasti


def is_handler(callback: Any) -> bool:
    """Return whether a callback registered with JAX is one of hostcb's handlers, without a wrapper around it."""
    code = getattr(callback, "__code__", None)
    return isinstance(code, CodeType) and code.co_filename.startswith(PACKAGE)


def has_failed(program: Program) -> bool:
    """Return whether a handler of this dispatch has failed, so that the calling handler must not run its function.

    Its operands may be the zeros that the failed handler left.
    """
    handler = sys._getframe(1)
    for pending in running.frame.pending or ():
        wrappers = pending.calls(handler) if pending.program is program else None
        if wrappers is not None:
            if not pending.is_like(wrappers):
                # Perhaps a dispatch of the same program, nested in the failed one. Then this one has failed now, too.
                also = Pending(pending.error, program, handler, pending.failure)
                running.frame.pending = [*running.frame.pending, also]
            return True
    return False


def clear(buffers: Sequence[Any]) -> None:
    """Write zeros into result buffers; an error will be raised in place of these results."""
    for buffer in buffers:
        # A buffer that is not the handler's own cannot be written to; see `views._device_of`.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            np.asarray(buffer)[...] = 0


def skip(program: Program, buffers: Sequence[Any]) -> None:
    """Write zeros as `clear` does, after another handler failed in the same dispatch."""
    try:
        clear(buffers)
    except BaseException:
        # An interrupt, such as Ctrl-C, by which this handler ends the dispatch. The next one must not raise the error.
        handler, pending = sys._getframe(1), running.frame.pending or ()
        _forget([each for each in pending if each.program is program and each.calls(handler) is not None])
        raise


def postpone(program: Program, error: BaseException, *, inside: int = 0) -> bool:
    """Let the dispatch in C++ that calls the handler raise `error` at its end; return False if there is none.

    `inside` is the number of user functions that the handler has added to `Frame.depth`.
    """
    handler = sys._getframe(1)
    if not program.takes_cpp_dispatch or handler.f_back is None or not thread_states.is_pythons():
        # Not dispatched in C++; or a thread of the runtime, which dispatches nothing.
        return False
    execution = running.frame.execution
    if (
        execution is not None
        and execution.program is program
        and not execution.fast
        and not execution.dispatch.has_ended()
        and execution.depth == running.frame.depth - inside
    ):
        # A dispatch in Python raises the error itself. Deeper, one of its callbacks dispatches the same program.
        return False
    failure = error.__cause__
    cause = shown_cause(failure)
    shown = jax.errors.JaxRuntimeError(beside_cause(str(error), cause))
    shown.__cause__ = cause
    # The error holds the failure. An execution of the same program around this dispatch must not take it for its own.
    program.failures.clear()
    if execution is not None and execution.program is program:
        execution.failure = None
    pending = Pending(shown, program, handler, failure)
    watched = False
    try:
        # The extension does not know of failures. Until the end, taps of this program come to Python, and are lost.
        program.goes_through_python(pending)
        running.frame.pending = [*(running.frame.pending or ()), pending]
        watched = watch_dispatches(_at_the_end)
    finally:
        if not watched:
            # An interrupt ends the dispatch, or this JAX has no hook.
            _forget([pending])
    return watched


def raise_what_is_left() -> None:
    """Raise the error that an earlier dispatch of this thread should have raised; called when the next one starts."""
    caller = sys._getframe(1)
    left = [each for each in running.frame.pending or () if not each.is_around(caller)]
    _forget(left)
    error = left[0].late() if left else None
    if error is not None:
        failure_log.raise_error(error, left[0].failure)


def raise_at_the_end(dispatcher: FrameType | None) -> None:
    """Raise the error of the dispatch that the frame `dispatcher` makes, if it has one, before the hook does."""
    raise_error, _ = _at_the_end(dispatcher)
    if raise_error is not None:
        raise_error()


def _at_the_end(dispatcher: FrameType | None) -> tuple[Callable[[], NoReturn] | None, bool]:
    """Return what raises the error of a dispatch of this thread at its end, and whether others are still pending."""
    over = [each for each in running.frame.pending or () if each.ends_with(dispatcher)]
    _forget(over)
    error = None
    if over:
        error = over[0].error if over[0].stands_at(dispatcher) else over[0].late()
    raise_error = None if error is None else functools.partial(failure_log.raise_error, error, over[0].failure)
    return raise_error, running.frame.pending is not None


def _forget(gone: list[Pending]) -> None:
    running.frame.pending = [each for each in running.frame.pending or () if each not in gone] or None
    for each in gone:
        each.program.is_over(each)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)
