"""The end of the process: it waits for the callbacks, for a bounded time, and lets none begin afterwards (H17).

Python ends a thread that asks for the interpreter lock while the interpreter is finalized. The thread may be in a
handler of the runtime, or in a call of jaxlib, and C++ does not bear that: the process aborts. So the exit has these
steps:

0. What waits now runs before the functions that the program has registered with `atexit` since it imported hostcb: they
   may close the file to which a callback writes. Meanwhile a program that another thread starts is refused: a loop in a
   daemon thread would make the wait longer and longer. The functions may start programs with callbacks, also in threads
   of their own, so the other steps follow them.
1. From now on a program that another thread starts is refused, unless a callback has started it.
2. The exit waits for what had been started. It gives up if a function runs, and none has begun or ended for as many
   seconds as the flag `hostcb_exit_timeout` says, or at an interrupt. It waits a few seconds for what daemon threads
   alone have started, since Python does not wait for such threads at all.
3. It logs what it has given up, and the failures that no barrier has reported.
4. No function begins any more. JAX dispatches programs of pure callbacks without telling hostcb. If other threads live,
   step 1 has cleared JAX's caches, so each of these programs is traced again, and refused. Programs that were compiled
   ahead of time still call their handlers. In a thread of Python, such as a loop in a daemon thread, a refusal and a
   handler now wait for ever without the interpreter lock: the thread never asks for it again, and starts no other
   program. In a thread of the runtime they fail.
5. The functions that were given up get an exception: one that polls asks for the interpreter lock again and again. The
   others are in C, and most do not wake before the process has ended.
6. With the native extension, a thread that Python ends in jaxlib nevertheless stays where it is and does not abort the
   process, such as a thread that waits for the result of a function that was given up (`library.hold_ended_threads`).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from .._compat import waiting
from .._errors.callback_exception import CallbackException
from .._errors.failures import at_exit, failure_log
from .._native.library import library
from .._spec import flags
from .._spec.naming import device_name
from .._threads.deadlines import LOOK_AT_EXIT, Deadline, join_waiters, seen_to_end
from .._threads.running import threads_in_functions
from .._threads.thread_states import is_dummy, is_hostcbs, is_pythons, stay
from .executions.barrier import REPORT_INTERVAL, wait_for_callbacks
from .executions.executions import tracker
from .executions.outstanding import listed, outstanding, programs
from .observing import observers
from .observing.observers import Observer, Run
from .queue.queues import queues

logger = logging.getLogger("hostcb")

# After a barrier has waited in vain, the exit waits for so many seconds at first, and says at once for what.
SECONDS_IN_VAIN = 10.0

# So many seconds the exit waits for programs that daemon threads alone have started.
SECONDS_FOR_DAEMONS = 5.0

# So many seconds a thread has to notice that it is refused, or that its function is given up.
GRACE = 0.2


class ProcessEnds(BaseException):
    """Raised in a function for which the exit has waited in vain."""

    def __init__(self) -> None:
        super().__init__("the process ends, and has waited in vain for this function")


class Patience(Deadline, Observer):
    """The exit's deadline. It moves on when a function begins or ends, and while none runs."""

    def __init__(self) -> None:
        self._seconds = flags.exit_timeout.value
        in_vain = tracker.waited_in_vain
        self._report = Deadline(0 if in_vain else REPORT_INTERVAL)
        self._daemons = Deadline(min(self._seconds, SECONDS_FOR_DAEMONS))
        super().__init__(min(self._seconds, SECONDS_IN_VAIN) if in_vain else self._seconds)

    def renew(self) -> None:
        super().__init__(self._seconds)

    def has_passed(self) -> bool:
        if self._report.has_passed():
            # By this thread, since Python 3.12 starts no others at its exit.
            self._report = Deadline(REPORT_INTERVAL)
            logger.warning(
                "barrier_wait[at_exit]: still waiting for %s. An interrupt (Ctrl-C) gives it up.", listed(outstanding())
            )
        if self._daemons.has_passed():
            if _only_daemons_wait():
                return True
            self._daemons = Deadline(SECONDS_FOR_DAEMONS)
        if not super().has_passed():
            return False
        if threads_in_functions():
            return True
        # The device computes. JAX waits for that, too, and has no timeout.
        self.renew()
        return False

    def started(self, run: Run) -> None:
        self.renew()

    def ended(self, run: Run, state: Any, failure: BaseException | None) -> None:
        self.renew()


class GivenUp(Observer):
    """What step 0 has given up. It is not waited for again, unless the functions of `atexit` have added something."""

    def __init__(self, interrupted: bool) -> None:
        self.text = listed(outstanding()) or "an interrupt came"
        self._interrupted = interrupted
        self._moved = False
        observers.observe(self)

    def is_all(self) -> bool:
        return self._interrupted or not (self._moved or listed(outstanding()) != self.text)

    def started(self, run: Run) -> None:
        self._moved = True

    def ended(self, run: Run, state: Any, failure: BaseException | None) -> None:
        self._moved = True


class Closed(Observer):
    """Lets no function begin, except in the thread that exits."""

    def started(self, run: Run) -> None:
        if threading.get_ident() == tracker.exits_in:
            return
        # A finalizer may run a program in the thread of a queue, for whose end the exit waits.
        if is_pythons() and not is_hostcbs():
            stay()
        raise RuntimeError(
            f"{run.host.callback} was to run while the process exits, which has waited for all callbacks."
        )


def _only_daemons_wait() -> bool:
    """Return whether all that goes on was started by daemon threads: Python has joined the others before the exit."""
    if found := programs():
        return not any(program.awaited for program in found)
    functions = threads_in_functions()
    daemons = {thread.ident for thread in threading.enumerate() if not is_dummy(thread)}
    return bool(functions) and daemons.issuperset(functions)


def _others_live() -> bool:
    """Return whether threads go on that are neither this one nor hostcb's own."""
    me = threading.current_thread()
    return any(each is not me and not each.name.startswith("hostcb-") for each in threading.enumerate())


def _end_functions() -> None:
    """Raise an exception in the functions that still run; one that waits in C does not get it before it returns."""
    for thread in threads_in_functions():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(ProcessEnds))
    end = Deadline(GRACE)
    while threads_in_functions() and not end.has_passed():
        time.sleep(LOOK_AT_EXIT)


@contextlib.contextmanager
def _patience() -> Iterator[Patience]:
    patience = Patience()
    observers.observe(patience)
    try:
        yield patience
    finally:
        observers.leave(patience)


def _run_what_waits() -> None:
    """Step 0. It does not wait for pure callbacks that JAX dispatches without telling hostcb: none is refused yet."""
    tracker.exits_in = threading.get_ident()
    with _patience() as patience:
        try:
            if not wait_for_callbacks("at_exit", patience, seen_to_end):
                tracker.given_up_at_exit = GivenUp(interrupted=False)
        except KeyboardInterrupt:
            tracker.given_up_at_exit = GivenUp(interrupted=True)
    tracker.exits_in = None


def _wait() -> str:
    """Wait for what had been started; return a text of what the exit gives up."""
    with _patience() as patience:
        try:
            # Repeat until nothing is pending: callbacks may start programs.
            while outstanding():
                if not wait_for_callbacks("at_exit", patience, seen_to_end):
                    return listed(outstanding())
            unseen = tracker.settle_unseen(patience)
            return ", ".join(f"pure callbacks on {', '.join(map(device_name, devices))}" for devices in unseen)
        except KeyboardInterrupt:
            return listed(outstanding()) or "an interrupt came"


def _at_exit() -> None:
    tracker.exits_in = threading.get_ident()
    beside_others = tracker.used and _others_live()
    if beside_others:
        jax.clear_caches()
    earlier = tracker.given_up_at_exit
    given_up = earlier.text if earlier is not None and earlier.is_all() else _wait()
    if given_up:
        logger.error("the process exits; these callbacks never finished, and their values are lost: %s", given_up)
    try:
        failure_log.raise_if_any()
    except CallbackException as exception:
        words = at_exit(exception.failures)
        if words is not None:
            logger.error("callbacks failed and no barrier_wait reported it before the program ended: %s", words)
    if beside_others:
        # A loop in a daemon thread is refused meanwhile. Most end.
        time.sleep(GRACE)
    tracker.closed = True
    # This thread alone runs functions from now on, such as those of what an `atexit` function taps later.
    queues.close(at_once=bool(given_up))
    observers.observe(Closed())
    if given_up:
        _end_functions()
        # JAX would wait for these at its own exit.
        queues.clear()
        waiting.forget_tokens()
    if beside_others:
        # Those that try again stop meanwhile.
        time.sleep(GRACE)
        tracker.settle_unseen(Deadline(GRACE))
    join_waiters(Deadline(GRACE))
    library.hold_ended_threads()


# JAX registered its exit handlers when it was imported. So this one runs before JAX's handlers clear the backends.
atexit.register(_at_exit)

# CPython calls the functions of this list before all functions of `atexit`, so step 0 becomes the last of these
# to be registered, and runs first. Without the list there is no step 0.
_before_all = getattr(threading, "_register_atexit", None)
if _before_all is not None:
    # Refused if hostcb is imported while the process exits.
    with contextlib.suppress(RuntimeError):
        _before_all(atexit.register, _run_what_waits)
