"""Fault cells of exceptions that their functions still need, or that nobody can write down."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import weakref
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import PATIENCE
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of, still_alive
from .harness.registry import planted

FAILURES = 12
"""More than those whose frames an implementation keeps as they were."""

KEPT = 1000
"""The failures of which a barrier reports each."""


def _catching() -> Generator[Any, None, None]:
    """Yields the error that was thrown into it; the error's traceback has the frame of this generator, which lives."""
    caught = None
    while True:
        try:
            yield caught
        except ValueError as error:
            caught = error


@planted("jit", "id_tap call io_callback", "H14 H15")
def error_of_a_generator(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function raises what its generator has caught, again and again: the generator goes on."""
    generator = _catching()
    next(generator)

    def host(operand: Any) -> Any:
        raise generator.throw(ValueError(PLANTED))

    compiled = bench.applying(callback, host)
    for _ in range(FAILURES):
        error_of(lambda: compiled(bench.operand))
    error_of(bench.implementation.barrier)
    # A generator that has ended raises what is thrown into it.
    ended = error_of(lambda: generator.throw(ValueError(PLANTED)))
    if ended is not None:
        witness = f"after {FAILURES} failures of its callback a generator has ended: {summary(ended)}"
        return [Anomaly("broken generator", Stage.CALLBACK, witness)]
    return check_quiet_barrier(bench, "after failures of a generator")


class UnreadableError(SyntaxError):
    """An exception that no other process could make, and of which Python cannot write the text that it writes of it."""

    def __reduce__(self) -> Any:
        raise TypeError("this exception stays where it is")


@planted("jit", "id_tap call", "H13 H14 H15")
def unreadable_error(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier reports an exception that cannot be shown, and its own one can be pickled all the same."""

    def host(operand: Any) -> Any:
        # The line of source is a number, at which `traceback` fails.
        error: Any = UnreadableError(PLANTED)
        error.text, error.lineno = 3, 1
        raise error

    error_of(lambda: bench.applying(callback, host)(bench.operand))
    try:
        bench.implementation.barrier()
    except bench.implementation.callback_exception as error:
        caught: Any = error
    else:
        return [Anomaly("swallowed error", Stage.BARRIER, "the barrier did not raise")]
    if not isinstance(caught.__cause__, UnreadableError):
        return [Anomaly("poor error", Stage.BARRIER, f"its cause is {caught.__cause__!r}")]
    try:
        again = pickle.loads(pickle.dumps(caught))
    except Exception as error:
        return [Anomaly("poor error", Stage.BARRIER, f"it cannot be pickled: {summary(error)}")]
    if str(again) != str(caught) or UnreadableError.__name__ not in str(again.failures[0].exception):
        return [Anomaly("poor error", Stage.BARRIER, f"pickled it is {again!r} with {again.failures}")]
    return check_quiet_barrier(bench, "after an exception that cannot be shown")


class _Together(logging.Filter):
    """Lets each failure wait for the other one when it is logged, so that both are known before any is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2)

    def filter(self, record: logging.LogRecord) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(PATIENCE)
        return True


@planted("jit", "call pure_callback io_callback", "H15 X2 X3", functions="barrier_wait")
def causes_of_two_threads(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Of two threads that run one program at the same time, the error of each has its own failure as its cause."""
    begin = threading.Barrier(2)
    errors: dict[float, Exception | None] = {}

    def host(operand: Any) -> Any:
        begin.wait(PATIENCE)
        raise ValueError(float(np.asarray(operand)))

    # JAX's fast dispatch shows what the first run has shown.
    compiled = jax.jit(lambda x: bench.apply(callback, host, x)).lower(np.float32(0)).compile()

    def run(number: float) -> None:
        errors[number] = error_of(lambda: jax.block_until_ready(compiled(np.float32(number))))

    together, logger = _Together(), logging.getLogger("hostcb")
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in (1.0, 2.0)]
    logger.addFilter(together)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
    finally:
        logger.removeFilter(together)
    error_of(bench.implementation.barrier)
    causes = {number: getattr(errors.get(number), "__cause__", None) for number in (1.0, 2.0)}
    found = {number: getattr(cause, "args", None) for number, cause in causes.items()}
    if found != {number: (number,) for number in (1.0, 2.0)}:
        return [
            Anomaly("poor error", Stage.RESULT, f"by operand, the causes have {found}, and the errors are {errors}")
        ]
    return check_quiet_barrier(bench, "after failures of two threads")


# After a failure on several devices the barrier of JAX raises it again and again, so its own are not asked.
@planted(
    *("jit pmap", "id_tap call pure_callback io_callback io_callback_ordered debug_callback", "H15 H18"),
    functions="barrier_wait",
)
def failure_lets_go(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function that failed holds its arrays no longer than until its failure was reported and dropped."""
    arrays: list[weakref.ref[Any]] = []

    def host(operand: Any) -> Any:
        array = np.zeros(1000)
        arrays.append(weakref.ref(array))
        raise ValueError(PLANTED)

    compiled = bench.applying(callback, host)
    error_of(lambda: compiled(bench.operand))
    error_of(bench.implementation.barrier)
    alive = still_alive({f"the array of call {number}": array for number, array in enumerate(arrays)})
    if alive or not arrays:
        witness = f"after the barrier {len(alive)} of {len(arrays)} arrays of functions that failed are alive"
        return [Anomaly("leak", Stage.BARRIER, witness)]
    return check_quiet_barrier(bench, "after a failure")


@planted("jit", "id_tap", "H13")
def more_failures_than_are_kept(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier has the first and the last failures where there are too many, and says how many there were."""

    def host(operand: Any) -> Any:
        raise ValueError(int(operand))

    def failing(count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda number, _: bench.apply(callback, host, number), 0)

    compiled = jax.jit(failing)
    anomalies = []
    for count in (KEPT, KEPT + 2):
        logging.disable(logging.CRITICAL)
        try:
            compiled(np.int32(count))
            bench.implementation.barrier()
        except bench.implementation.callback_exception as error:
            caught: Any = error
        else:
            return [Anomaly("swallowed error", Stage.BARRIER, f"after {count} failures the barrier did not raise")]
        finally:
            logging.disable(logging.NOTSET)
        found = [failure.exception.args[0] for failure in caught.failures]
        if found != [*range(KEPT // 2), *range(count - KEPT // 2, count)]:
            witness = f"of {count} failures the barrier has {len(found)}, from {found[:1]} to {found[-1:]}"
            anomalies.append(Anomaly("wrong count", Stage.BARRIER, witness))
        if str(count) not in str(caught):
            anomalies.append(Anomaly("poor error", Stage.BARRIER, f"it does not say that {count} callbacks failed"))
    error_of(lambda: compiled(np.int32(1)))
    text = str(error_of(bench.implementation.barrier))
    if "callbacks failed" in text or PLANTED in text:
        anomalies.append(Anomaly("stale error", Stage.BARRIER, f"of one failure after many it says {text}"))
    return anomalies + check_quiet_barrier(bench, "after many failures")
