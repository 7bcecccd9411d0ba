"""Fault cells of exceptions that their functions still need, or that nobody can write down."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from typing import Any

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .checks import PLANTED, check_quiet_barrier, error_of
from .fault import planted

FAILURES = 12
"""More than those whose frames an implementation keeps as they were."""


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
    again = ValueError(PLANTED)
    try:
        caught = generator.throw(again)
    except (StopIteration, ValueError) as error:
        caught = error
    if caught is not again or generator.gi_frame is None:
        witness = f"after {FAILURES} failures of its callback a generator has ended: {summary(caught)}"
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
        raise UnreadableError(PLANTED, ("a file", 1, 1, 3))

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
