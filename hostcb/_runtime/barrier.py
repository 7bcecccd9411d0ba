"""Waiting for everything that has been started (H13, H17, H19)."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from .._compat import waiting
from .blocks import blocks
from .executions import tracker
from .failures import CallbackException, failure_log
from .frames import leave_out_frames
from .queues import queues
from .running import inside_callback

logger = logging.getLogger("hostcb")

# How often a waiting barrier logs the callbacks that it waits for, in seconds.
REPORT_INTERVAL = 10.0


# A callback may start a program whose callback starts another, and so on. A barrier follows so many generations: other
# threads may start programs again and again, and without a bound the barrier would never end.
GENERATIONS = 16


def barrier_wait(logging_name: str | None = None) -> None:
    """Wait until every callback of the computations started so far has run, on all devices and from all threads.

    Args:
        logging_name: a name for this barrier in the log. The logger `hostcb` says when a barrier starts and ends
            (level DEBUG), and what it waits for: at its start, and every ten seconds (level WARNING).

    Raises:
        CallbackException: a callback failed since the last barrier; the message and `__cause__` are the last failure,
            `failures` has all of them. They are forgotten then.
        RuntimeError: called from inside a callback, where it would wait for that callback.

    From a signal handler or a `__del__` that interrupts the dispatch of a program, it waits for everything but this
    program.

    Follows H13 of the contract. Example:

        >>> import hostcb as hcb
        >>> seen = []
        >>> _ = hcb.id_tap(lambda arg, transforms: seen.append(float(arg)), 3.0)
        >>> hcb.barrier_wait("docs")
        >>> seen
        [3.0]
    """
    try:
        name = logging_name or ""
        if inside_callback():
            raise RuntimeError(
                f"barrier_wait[{name}] was called from inside a callback: it would wait for this callback to end. Wait "
                "for the results of computations started here instead, with jax.block_until_ready."
            )
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("barrier_wait[%s]: start, waiting for: %s", name, _listed(pending()) or "nothing")
        wait_for_callbacks(name)
        logger.debug("barrier_wait[%s]: done", name)
        failure_log.raise_if_any()
    except Exception as error:
        leave_out_frames(error)
        raise


def stop_outfeed_receiver() -> None:
    """Run what is pending, end the threads that run callbacks, and give back memory; the next callback starts them.

    Failures stay for the next `barrier_wait`. Follows H17 of the contract; the name is host_callback's, hostcb has no
    outfeed.
    """
    try:
        if inside_callback():
            raise RuntimeError("stop_outfeed_receiver was called from inside a callback: it would wait for itself.")
        wait_for_callbacks("stop_outfeed_receiver")
        queues.stop()
        blocks.clear()
    except Exception as error:
        leave_out_frames(error)
        raise


def wait_for_callbacks(name: str) -> None:
    """Wait as `barrier_wait` does; failures stay for the next `barrier_wait`."""
    if not tracker.informed:
        # Without the dispatch hooks JAX can wait for the programs of this thread, and for those that the runtimes have.
        waiting.settle_thread()
        waiting.settle_platforms()
    executions = tracker.live()
    with _reporting(name, bool(executions) or any(queue.is_pending() for queue in queues.all())):
        for _ in range(GENERATIONS):
            for execution in executions:
                execution.wait()
            for queue in queues.all():
                queue.join()
            # The executions that those callbacks started.
            executions = [execution for execution in tracker.live() if execution.nested]
            if not executions:
                break
    tracker.forget_failures()


def pending() -> list[str]:
    """Describe the executions and callbacks that have not ended."""
    running = [str(execution) for execution in tracker.live()]
    queued = [f"{name} waits on {queue.device}" for queue in queues.all() for name in queue.waiting()]
    return [*running, *queued]


def _listed(names: Sequence[str]) -> str:
    """The names, equal ones once: a queue may hold thousands of values for one callback."""
    counts = Counter(names)
    return "; ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


@contextlib.contextmanager
def _reporting(name: str, worthwhile: bool) -> Iterator[None]:
    """While the block waits, log every `REPORT_INTERVAL` seconds the callbacks that have not ended."""
    if not worthwhile:
        yield
        return
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(REPORT_INTERVAL):
            logger.warning("barrier_wait[%s]: still waiting for: %s", name, _listed(pending()) or "nothing")

    reporter = threading.Thread(target=report, name="hostcb-barrier-report", daemon=True)
    with contextlib.suppress(RuntimeError):
        # At interpreter exit Python starts no threads, and the barrier matters more than its report.
        reporter.start()
    try:
        yield
    finally:
        ended.set()


def _at_exit() -> None:
    try:
        # Repeat until nothing is pending: a callback that runs after the interpreter has ended aborts the process.
        while pending():
            wait_for_callbacks("at_exit")
        tracker.settle_unseen()
        barrier_wait("at_exit")
    except CallbackException as exception:
        logger.error("callbacks failed and no barrier_wait reported it before the program ended: %s", exception)


# JAX registered its exit handlers when it was imported. So this one runs before JAX's handlers clear the backends.
atexit.register(_at_exit)
