"""What went wrong in user functions, kept until a barrier reports it (H13, H14, H15)."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import threading
import traceback
from typing import Any

logger = logging.getLogger("hostcb")

# Past this many since the last barrier only the number is kept: an exception keeps its frames alive, and with them
# the arrays that the failing function was given.
KEPT_FAILURES = 1000
# Of these, so many of the newest keep the local variables of their frames. A program that catches its errors and never
# comes to a barrier must not fill the memory with arrays.
KEPT_FRAMES = 8

_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

PACKAGE = os.path.dirname(__file__) + os.sep


@dataclasses.dataclass(frozen=True)
class Failure:
    """One user function that failed: which, where, why, and the traceback as text."""

    callback: str
    device: Any
    exception: BaseException
    text: str


class CallbackException(Exception):  # noqa: N818 - host_callback's name
    """Some callbacks failed since the last barrier.

    Raised by `hostcb.barrier_wait`. `__cause__` is the last failure's exception; `failures` holds all of them in the
    order in which they happened, each with `callback`, `device`, `exception` and `text` (H13).
    """

    def __init__(self, message: str, failures: tuple[Failure, ...] = ()):
        super().__init__(message)
        self.failures = failures


# host_callback had renamed its exception and kept the old name.
TapFunctionException = CallbackException


class Ledger:
    """The failures since the last barrier."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: list[Failure] = []
        self._dropped = 0

    def record(self, callback: str, device: Any, exception: BaseException, postponed: bool) -> Failure:
        """Log a failure and keep it for the next barrier; `postponed` if nobody else reports it."""
        text = formatted(exception)
        failure = Failure(callback, device, exception, text)
        with self._lock:
            if len(self._failures) >= KEPT_FAILURES:
                # The first failure is usually the cause of the others, so the middle goes.
                del self._failures[KEPT_FAILURES // 2]
                self._dropped += 1
            self._failures.append(failure)
            if len(self._failures) > KEPT_FRAMES:
                forget_locals(self._failures[-KEPT_FRAMES - 1].exception)
        try:
            what = "Postponing exception" if postponed else "Exception"
            logger.error("%s raised in callback function %s on %s: %s", what, callback, device, text)
        except Exception as broken:
            # A log handler that raises must not cost the thread that runs callbacks.
            with self._lock:
                self._failures.append(Failure("a handler of the log", device, broken, formatted(broken)))
        return failure

    def raise_if_any(self) -> None:
        """Raise what has been recorded, and forget it."""
        with self._lock:
            failures, self._failures = tuple(self._failures), []
            dropped, self._dropped = self._dropped, 0
        if not failures:
            return
        last = failures[-1]
        count = len(failures) + dropped
        message = f"There were exceptions during callback processing. Last one was: {last.text}"
        if count > 1:
            names = ", ".join(sorted({failure.callback for failure in failures}))
            message += f"\n{count} callbacks failed since the last barrier ({names}); see `.failures` for each."
        raise CallbackException(message, failures) from last.exception


def forget_locals(exception: BaseException) -> None:
    """Let go of what the frames of an exception and of those that it came from hold."""
    chain: list[BaseException | None] = [exception]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        chain += [each.__cause__, each.__context__]
        for frame, _ in traceback.walk_tb(each.__traceback__):
            # One that still runs refuses, and clearing a generator's would end it.
            if not frame.f_code.co_flags & _RESUMABLE:
                with contextlib.suppress(RuntimeError):
                    frame.clear()


def formatted(exception: BaseException) -> str:
    """The traceback from the user's function on: how hostcb got there helps nobody."""
    frames = exception.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(PACKAGE):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(exception), exception, frames))


ledger = Ledger()
