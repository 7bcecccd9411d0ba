"""The hand-overs of a cell's callbacks, if the implementation can record them.

An implementation can if it has `traced_runs`. Its record does not take part in the verdict, which the history gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

from ..implementations import Implementation
from ..oracle.enqueue_times import TracedRun
from ..oracle.history import Event, History

R = TypeVar("R")


class EnqueueTimesError(Exception):
    """The record of the implementation failed, which says nothing about its callbacks."""


def recorded(implementation: Implementation, run: Callable[[], R]) -> tuple[R, Sequence[TracedRun]]:
    """Return what `run` returns, and the runs of user functions that the implementation recorded meanwhile."""
    record = getattr(implementation, "traced_runs", None)
    if record is None:
        return run(), ()
    with ExitStack() as stack:
        with _explained():
            runs: Sequence[TracedRun] = stack.enter_context(record())
        result = run()
        with _explained():
            stack.close()
    return result, runs


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise EnqueueTimesError(
            "the trace that shows when the callbacks of this cell were handed over failed, so the cell has no verdict; "
            f"a run without --histories needs no trace: {type(error).__name__}: {error}"
        ) from error


def with_enqueue_times(history: History, runs: Sequence[TracedRun]) -> History:
    """The history, with the hand-over of each event that ran in a run of the record."""
    return replace(history, events=tuple(_with_enqueue_time(event, runs) for event in history.events))


def _with_enqueue_time(event: Event, runs: Sequence[TracedRun]) -> Event:
    around = [run for run in runs if run.thread == event.thread and run.begin <= event.begin and event.end <= run.end]
    if not around:
        return event
    # A callback that runs inside another one began after it.
    innermost = max(around, key=lambda run: run.begin)
    return replace(event, handed_over=innermost.handed_over)
