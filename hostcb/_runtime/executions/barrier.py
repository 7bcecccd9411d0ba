"""Waiting for everything that has been started (H13, H17, H19)."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import jax

from ..._compat import UnknownJaxError, is_tracing, waiting
from ..._errors.failures import failure_log
from ..._errors.frames import leave_out_frames
from ..._spec.naming import shown
from ..._threads.deadlines import Deadline, Waitable, checked, ended_by, seen_to_end
from ..._threads.running import inside_callback
from ..memory.blocks import blocks
from ..observing import observers
from ..queue.consumers import starts_here
from ..queue.queues import queues
from .executions import tracker
from .failed_calls import failed_calls
from .outstanding import BarrierTimeoutError, listed, outstanding

logger = logging.getLogger("hostcb")

# How often a waiting barrier logs the callbacks that it waits for, in seconds.
REPORT_INTERVAL = 10.0


# A callback may start a program whose callback starts another, and so on. A barrier follows so many generations: other
# threads may start programs again and again, and without a bound the barrier would never end.
GENERATIONS = 16


def barrier_wait(logging_name: str | None = None, *, timeout: float | None = None, raise_again: bool = True) -> None:
    """Wait until every callback of the computations started so far has run, on all devices and from all threads.

    Args:
        logging_name: a name for this barrier in the log. The logger `hostcb` says when a barrier starts and ends
            (level DEBUG), and what it waits for: at its start, and every ten seconds (level WARNING).
        timeout: wait for so many seconds at most. No callback then runs in the calling thread, so one that hangs does
            not hold the barrier up.
        raise_again: with False, the barrier forgets the failures that the program has got as the error of a dispatch,
            and raises the others alone. It raises a failure where hostcb does not know that the program got it: JAX
            raises the error of a computation on several devices when the program asks for a result.

    Raises:
        BarrierTimeoutError: callbacks have not all run in time; a `TimeoutError`. The message and `outstanding` say
            which. Nothing is lost: they go on, and the next barrier waits for them and reports all failures.
        CallbackException: a callback failed since the last barrier; the message and `__cause__` are the last failure,
            `failures` has all of them. They are forgotten then.
        RuntimeError: called from inside a callback, where it would wait for that callback.
        TypeError: `timeout` is no number, or `logging_name` no string.
        ValueError: `timeout` is negative or NaN.
        UnknownJaxError: with `timeout`, on a JAX that does not report executions.

    In a function that JAX traces it waits while JAX traces, gives a `RuntimeWarning`, and is no part of the program.
    From a signal handler or a `__del__` that interrupts the dispatch of a program, it waits for everything but this
    program.

    Follows H13 and H30 of the contract. Example:

        >>> import hostcb as hcb
        >>> seen = []
        >>> _ = hcb.id_tap(lambda arg, transforms: seen.append(float(arg)), 3.0)
        >>> hcb.barrier_wait("docs")
        >>> seen
        [3.0]
    """
    try:
        name = _checked_name(logging_name)
        seconds = None if timeout is None else checked(_title(name), timeout)
        if inside_callback() or starts_here():
            raise RuntimeError(
                f"{_title(name)} was called from inside a callback: it would wait for this callback to end. Wait "
                "for the results of computations started here instead, with jax.block_until_ready."
            )
        if is_tracing():
            # A signal handler or a `__del__` may come while JAX traces, so this is no error.
            warnings.warn(
                f"{_title(name)} was called while JAX traces a function: it waits now, and not when the program runs. "
                "Call it after the program, outside of the function.",
                RuntimeWarning,
                stacklevel=2,
            )
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("barrier_wait[%s]: start, waiting for: %s", name, listed(outstanding()))
        began = time.monotonic()
        try:
            if seconds is None:
                without_order = tracker.without_order()
                wait_for_callbacks(name)
                for each in without_order:
                    each.wait()
            else:
                _wait_in_time(name, seconds)
        except (BarrierTimeoutError, KeyboardInterrupt):
            tracker.waited_in_vain = True
            raise
        finally:
            if observers.on is not None:
                observers.on.waited(time.monotonic() - began)
        logger.debug("barrier_wait[%s]: done", name)
        failure_log.raise_if_any(raise_again)
    except Exception as error:
        leave_out_frames(error)
        raise


def _title(name: str) -> str:
    # The lines of level DEBUG have the brackets always, as those of host_callback.
    return f"barrier_wait[{name}]" if name else "barrier_wait"


def _checked_name(logging_name: str | None) -> str:
    if logging_name is None or isinstance(logging_name, str):
        return logging_name or ""
    raise TypeError(
        f"barrier_wait: logging_name must be a string, got {shown(logging_name)}; a limit in seconds is timeout=…"
    )


def stop_outfeed_receiver() -> None:
    """Run what is pending, end the threads that run callbacks, and give back memory; the next callback starts them.

    Failures stay for the next `barrier_wait`. Follows H17 of the contract; the name is host_callback's, hostcb has no
    outfeed.
    """
    try:
        if inside_callback() or starts_here():
            raise RuntimeError("stop_outfeed_receiver was called from inside a callback: it would wait for itself.")
        wait_for_callbacks("stop_outfeed_receiver")
        queues.stop()
        blocks.clear()
    except Exception as error:
        leave_out_frames(error)
        raise


def wait_for_callbacks(
    name: str, deadline: Deadline | None = None, ended: Callable[[Waitable, Deadline], bool] = ended_by
) -> bool:
    """Wait as `barrier_wait` does; failures stay for the next `barrier_wait`. Return False if the deadline passes."""
    if not tracker.informed:
        # Without the dispatch hooks JAX can wait for the programs of this thread, and for those that the runtimes have.
        waiting.settle_thread()
        waiting.settle_platforms()
    executions = tracker.live()
    pending = bool(executions) or any(queue.is_pending() for queue in queues.all())
    with _reporting(name, pending and ended is ended_by):
        for _ in range(GENERATIONS):
            for execution in executions:
                if deadline is None:
                    execution.wait()
                elif not ended(execution, deadline):
                    return False
            for queue in queues.all():
                if deadline is None:
                    queue.join()
                elif not queue.join_by(deadline):
                    return False
            # The executions that those callbacks started, and then the taps of these: a queue that was joined above
            # has them if another thread runs the same program, see `Program.nested_on`.
            executions = [execution for execution in tracker.live() if execution.nested]
            if not executions and not any(queue.has_nested() for queue in queues.all()):
                break
    failed_calls.drop_ended()
    tracker.waited_in_vain = False
    return True


def _wait_in_time(name: str, seconds: float) -> None:
    """As `wait_for_callbacks`, but raise BarrierTimeoutError if that takes longer."""
    if not tracker.informed:
        raise UnknownJaxError(
            f"{_title(name)}: a timeout cannot be used with JAX {jax.__version__}, which does not report "
            "executions: JAX itself then waits for the programs, and has no timeout. Call barrier_wait without one; "
            "`python -m hostcb` lists what this JAX lacks."
        )
    deadline = Deadline(seconds)
    without_order = tracker.without_order()
    while not (wait_for_callbacks(name, deadline) and all(seen_to_end(each, deadline) for each in without_order)):
        left = outstanding()
        if left:
            raise BarrierTimeoutError(
                f"{_title(name)}: the callbacks have not all run within {seconds:g} s. Outstanding: "
                f"{listed(left)}. They go on, and the next barrier waits for them again.",
                left,
            )
        # They may have ended just now, or one has started a program while they were listed.


@contextlib.contextmanager
def _reporting(name: str, worthwhile: bool) -> Iterator[None]:
    """While the block waits, log every `REPORT_INTERVAL` seconds the callbacks that have not ended."""
    if not worthwhile:
        yield
        return
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(REPORT_INTERVAL):
            logger.warning("%s: still waiting for %s", _title(name), listed(outstanding()))

    reporter = threading.Thread(target=report, name="hostcb-barrier-report", daemon=True)
    with contextlib.suppress(RuntimeError):
        # At interpreter exit Python starts no threads, and the barrier matters more than its report.
        reporter.start()
    try:
        yield
    finally:
        ended.set()
