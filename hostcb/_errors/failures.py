"""The failures of user functions, kept until a barrier reports them (H13, H14, H15)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import jax

from .. import _compat
from .._spec.failure_policy import OnError
from .._spec.naming import PACKAGE, class_name, transferable
from .._threads.chains import Link, Sums, extend, last_of
from .advice import advice_in
from .callback_exception import CallbackException, Failure, only_text
from .forgetting import chain, forget_callers, forget_locals
from .frames import shorten_traceback
from .headlines import headline
from .refusals import is_hostcbs, own_words
from .repeats import Repeats

logger = logging.getLogger("hostcb")

# Of more failures since the last barrier only the number is kept: an exception keeps its frames alive, and they keep
# the function's operands alive.
KEPT_FAILURES = 1000
# Only so many of the newest failures keep the local variables of their frames. Otherwise a program that catches its
# errors and never waits at a barrier would fill the memory with arrays. Those of the functions that called the program
# are the newest failure's alone.
KEPT_FRAMES = 8


# Of a failure that the program has got before the barrier raises it.
AGAIN = (
    "The computation of this callback has ended with this failure already, and raised it as a "
    "jax.errors.JaxRuntimeError; the barrier reports it again."
)
# Of one that it has not got, as on several devices.
NOT_YET = (
    "The computation of this callback has ended with this failure. Reading a result of it raises the failure, too, "
    "as a jax.errors.JaxRuntimeError."
)
LEAVES_OUT = " With raise_again=False it does not."

# What the log says of a failure, by its policy.
CONSEQUENCES: dict[OnError | None, str] = {
    None: "its computation ends",
    "barrier": "the next barrier_wait raises it",
    "next_dispatch": "the next dispatch raises it",
    "log": "nothing raises it",
}
# Beside the first, of a device whose peers do not end with it.
ALONE = "; if another device waits for this one, as in psum, XLA ends the process, on CPUs after a minute"
SINCE = " since the last barrier"

# Of an error that has nothing to do with the program that raises it.
NOT_STARTED = "This dispatch has not begun: on_error='next_dispatch' lets it raise what failed before."


class _Report(Link):
    """The exception that a barrier or a dispatch raises, until it does, and the numbers of its failures."""

    __slots__ = ("dropped", "due", "error", "number", "numbers")

    def __init__(
        self, number: int, numbers: Sequence[int], dropped: int, error: list[CallbackException], due: bool = False
    ):
        super().__init__()
        # Whether a dispatch raises it.
        self.due = due
        # How many barriers have reported failures up to this one, and how many failures had been dropped.
        self.number, self.dropped = number, dropped
        self.numbers = numbers
        self.error = error


class FailureLog:
    """The failures since the last barrier.

    A barrier may be interrupted anywhere, and other barriers and failures may come meanwhile:

    1. It makes its report, of the failures that are in no report yet.
    2. It appends the report to the chain of all reports. If another barrier was faster, it begins again with 1.
    3. It raises the report, in one step in C with taking it out of the chain. If it does not come to that, the next
       barrier raises this report.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all failures, in a forked child: they are its parent's."""
        self._failures: dict[int, Failure] = {}
        self._numbers = itertools.count()
        self._dropped = Sums[tuple[int]](0)
        self._report = _Report(0, (), 0, [])
        self._repeats = Repeats("times since the last barrier. The last:")
        # Of failures that are only logged, which no barrier reports.
        self._only_logged = Repeats("times. The last:")
        # The numbers of the kept failures that the next dispatch raises.
        self.due: dict[int, None] = {}

    @property
    def reports(self) -> int:
        """How many barriers have reported failures."""
        return last_of(self._report).number

    def record(
        self,
        callback: str,
        device: Any,
        exception: BaseException,
        on_error: OnError | None,
        kind: str = "callback",
        dispatched_here: bool = False,
        alone: bool = False,
    ) -> None:
        """Keep a failure for the next barrier or dispatch, and log it in one line.

        It is not kept if it is to be logged only, with its traceback, and not logged if the program certainly gets an
        error.

        Args:
            callback: the name of the function that failed.
            device: the device that called; None if it is not known.
            exception: what the function raised.
            on_error: what raises it later; None if its computation ends with an error.
            kind: the public name of the function that made the callback.
            dispatched_here: whether this thread dispatches that computation, and so raises its error. Otherwise the
                program gets the error only with the results, which it may never ask for; and it may wait for them until
                the runtime ends the process.
            alone: whether other devices run that computation, too, and do not end with this one.
        """
        shorten_traceback(exception)
        try:
            text = formatted(exception)
            first = headline(kind, callback, device, exception)
        except BaseException:
            # An interrupt goes on, and the failure is not lost.
            first = f"{kind}: {callback} raised {class_name(exception)}"
            self._keep(Failure(callback, device, exception, first, kind, first, ended=on_error is None), on_error)
            raise
        if on_error == "log":
            # Nothing else ever shows the traceback.
            rest = f" ({CONSEQUENCES[on_error]})\n{text.rstrip()}"
            self._log(self._only_logged, kind, callback, exception, first, rest)
            return
        failures = self._keep(Failure(callback, device, exception, text, kind, first, on_error is None), on_error)
        for older in failures[-KEPT_FRAMES - 1 : -KEPT_FRAMES]:
            forget_locals(older.exception)
        for older in failures[-2:-1]:
            forget_callers(older.exception)
        if not dispatched_here:
            rest = f" ({CONSEQUENCES[on_error]}{ALONE if alone else ''})"
            self._log(self._repeats, kind, callback, exception, first, rest)

    def _log(self, repeats: Repeats, kind: str, callback: str, exception: BaseException, first: str, rest: str) -> None:
        try:
            line = repeats.line(kind, callback, class_name(exception), first, rest)
            if line is not None:
                logger.error("%s", line)
        except Exception as broken:
            # A logging handler that raises must not end the thread that runs callbacks.
            name = "a handler of the log"
            first = headline("logging", name, None, broken)
            self._keep(Failure(name, None, broken, formatted(broken), "logging", first), "barrier")

    def raised(self, exception: BaseException | None, error: BaseException | None = None) -> None:
        """Note that the program gets the error of the computation that has ended with this exception of a function.

        With `error`, an error of a computation that goes up to the program at this moment and shows that exception, the
        failure is `raised_here`.
        """
        shown = error if isinstance(error, jax.errors.JaxRuntimeError) else None
        for failure in reversed(list(self._failures.values())):
            known = failure.raised if shown is None else failure.raised_here
            if failure.exception is exception and failure.ended and not known:
                # Frozen for users. A new object would come back after a barrier of another thread has taken the old.
                object.__setattr__(failure, "raised", True)
                if shown is not None and (shown.__cause__ is exception or failure.headline in str(shown)):
                    object.__setattr__(failure, "raised_here", True)
                return

    def raise_error(self, error: BaseException, exception: BaseException | None) -> NoReturn:
        """Raise to the program the `error` of a computation that has ended with this exception of a function.

        An interrupt may come at any line. The failure is noted while `error` goes up, so that an interrupt from then on
        has it as its context. One that comes before leaves the failure to the barrier.
        """
        try:
            raise error
        except BaseException as raised:
            if raised is error:
                self.raised(exception, error)
            raise
        finally:
            # The traceback refers to this frame, and this variable would close a reference cycle.
            del error

    def seen(self, text: str) -> None:
        """Note that the program gets an error with this text, of a computation that a callback has ended.

        Devices that fail together have one error, which names one of them: it is that of all failures of the callback.
        """
        for failure in list(self._failures.values()):
            if failure.ended and f"{failure.kind}: {failure.callback}" in text:
                object.__setattr__(failure, "raised", True)

    def _keep(self, failure: Failure, on_error: OnError | None) -> list[Failure]:
        """Keep a failure for the next barrier or dispatch, and return all that are kept."""
        number = next(self._numbers)
        self._failures[number] = failure
        if on_error == "next_dispatch":
            self.due[number] = None
        kept = list(self._failures.items())
        if len(kept) > KEPT_FAILURES:
            # The first failures are usually the cause of the others, so one in the middle is dropped.
            number, _ = kept.pop(KEPT_FAILURES // 2)
            self.due.pop(number, None)
            if self._failures.pop(number, None) is not None:
                self._dropped.add(1)
        return [each for _, each in kept]

    def raise_if_any(self, raise_again: bool = True) -> None:
        """Raise the recorded failures, and forget them. Of several barriers at a time one raises them.

        Without `raise_again` only those are raised that are not `raised_here`.
        """
        while True:
            report = last_of(self._report)
            self._raise(report)
            (dropped,), kept = self._dropped.read(), list(self._failures.items())
            if not kept:
                return
            more = dropped - report.dropped
            # Of those that were dropped nobody knows whether the program got them.
            every = raise_again or more > 0
            failures = tuple(failure for _, failure in kept if every or not failure.raised_here)
            errors = [_reported(failures, len(failures) + more, SINCE)] if failures else []
            self._repeats.forget()
            # Another barrier may have been faster.
            extend(report, _Report(report.number + 1, [number for number, _ in kept], dropped, errors))

    def raise_due(self) -> None:
        """Raise the failures that are for the next dispatch, and forget them. Of several dispatches one raises them."""
        while True:
            report = last_of(self._report)
            if report.error and not report.due:
                # A barrier is about to raise it. The next dispatch raises these.
                return
            self._raise(report)
            kept = [(number, self._failures.get(number)) for number in list(self.due)]
            due = {number: failure for number, failure in kept if failure is not None}
            if not due:
                return
            error = _reported(tuple(due.values()), len(due), "", NOT_STARTED)
            extend(report, _Report(report.number, [*due], report.dropped, [error], due=True))

    def _raise(self, report: _Report) -> None:
        """Raise the last report, unless that has been done."""
        self._report = report
        for number in report.numbers:
            self._failures.pop(number, None)
            self.due.pop(number, None)
        with contextlib.suppress(IndexError):
            # C takes the exception out of the report, and throws it into an empty generator: no step is between.
            min(iter(report.error.pop, None), key=(_ for _ in ()).throw)


def _reported(failures: tuple[Failure, ...], count: int, since: str, more: str = "") -> CallbackException:
    """Return the exception for some of so many failures."""
    last = failures[-1]
    # Python shows the traceback of the cause.
    words = transferable(only_text(last.exception))
    message = f"{last.headline}\nThere were exceptions during callback processing. Last one was: {words}"
    if more:
        message += f"\n{more}"
    if last.ended:
        message += f"\n{AGAIN if last.raised else NOT_YET}{LEAVES_OUT if last.raised_here else ''}"
    if count > 1:
        each = "see `.failures` for each"
        if count > len(failures):
            first, latest = KEPT_FAILURES // 2, KEPT_FAILURES - KEPT_FAILURES // 2
            each = f"`.failures` has the first {first} and the last {latest}"
        message += f"\n{_times(failures, count)}{since}, the last time as above; {each}."
        if failures[0].headline != last.headline:
            # It is often the reason of the others.
            message += f"\nThe first: {failures[0].headline}"
    error = CallbackException(message, failures)
    error.__cause__ = last.exception
    return error


def _times(failures: Sequence[Failure], count: int | str) -> str:
    """Say which callbacks failed, and how often: one callback fails on each device, and in each program."""
    names = sorted({failure.callback for failure in failures})
    return f"{', '.join(names)} failed {count} times{' in all' if len(names) > 1 else ''}"


def at_exit(failures: Sequence[Failure]) -> str | None:
    """Return in words those of `failures` that the program has not raised; None if there are none."""
    left = [each for each in failures if not (each.ended and each.raised)]
    if not left:
        return None
    said = f"{left[-1].headline}\n{left[-1].text.rstrip()}"
    count = f"{len(left)} or more" if len(failures) >= KEPT_FAILURES else str(len(left))
    return said if len(left) == 1 else f"{said}\n{_times(left, count)}, the last time as above."


def formatted(exception: BaseException) -> str:
    """Format the traceback from the user's function on, without hostcb's frames before it."""
    try:
        frames = exception.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(PACKAGE):
            frames = frames.tb_next
        return transferable("".join(traceback.format_exception(type(exception), exception, frames)))
    except Exception as broken:
        # The exception has a malformed or unreadable attribute.
        return f"{class_name(exception)}: its traceback cannot be shown, which raises {class_name(broken)}"


def shown_cause(failure: BaseException | None) -> BaseException | None:
    """Return the exception that a program's error should have as its cause.

    None if the function has raised nothing, since the error's text has hostcb's words about the returned value.
    """
    return None if failure is not None and is_hostcbs(failure) else failure


def beside_cause(text: str, cause: BaseException | None) -> str:
    """Return the text of an error for a place where Python shows the error's cause, too: without its traceback.

    In place of the traceback the text has hostcb's advice. If a callback in the callback failed, it has the words of
    the function's exception and of the innermost.
    """
    if cause is None:
        return text
    try:
        shown = [*chain(cause)]
        words = [advice_in(cause)]
        if any(isinstance(each, jax.errors.JaxRuntimeError) for each in shown):
            # What the error of a computation says is about a callback in it.
            said = shown[-1:] if isinstance(cause, jax.errors.JaxRuntimeError) else [cause, shown[-1]]
            words = [only_text(each) for each in said]
        kept = "".join(f"\n{each}" for each in dict.fromkeys(words) if each)
        return text.replace(f"\n{formatted(cause).strip()}", transferable(kept))
    except Exception:
        # The user's class may let any access to its attributes raise.
        return text


failure_log = FailureLog()
_compat.watch_errors(own_words, failure_log.seen)
