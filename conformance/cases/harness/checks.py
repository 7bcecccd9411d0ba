"""Checks that case cells share."""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...implementations import Implementation
from ...oracle.checkers import Anomaly
from ...oracle.history import Event
from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.jax_versions import JaxRuntimeError
from .bench import Bench

PLANTED = "planted failure"
ERROR_MARK = np.zeros(12345, np.int8)
"""A failed call passes this array in place of its result; a callback that returns it must fail."""

LATEST_SECONDS = 2.0
"""An object that is still alive after this time counts as kept."""


def error_of(run: Callable[[], Any]) -> Exception | None:
    try:
        np.asarray(run())
    except Exception as error:
        return error
    return None


def unequal(kind: str, stage: Stage, what: str, seen: object, wanted: object) -> list[Anomaly]:
    """Return an anomaly of this kind unless `seen` equals `wanted`; `what` names it in the sentence."""
    if seen == wanted:
        return []
    return [Anomaly(kind, stage, f"{what}: seen {seen!r}, expected {wanted!r}")]


def in_turn(events: Sequence[Event], names: Sequence[str]) -> list[Anomaly]:
    """The hosts with these names have run in this order, each after the end of the one before it."""
    anomalies = unequal("order", Stage.CALLBACK, "callbacks", [event.site for event in events], [*names])
    for earlier, later in itertools.pairwise(events):
        if later.begin < earlier.end:
            anomalies.append(Anomaly("order", Stage.CALLBACK, f"{later.site} began while {earlier.site} was running"))
    return anomalies


def check_quiet_barrier(bench: Bench, when: str) -> list[Anomaly]:
    try:
        bench.implementation.barrier()
    except Exception as error:
        return [Anomaly("stale error", Stage.BARRIER, f"the barrier raised {when}: {summary(error)}")]
    return []


def check_value(label: str, run: Callable[[], Any], wanted: Any) -> list[Anomaly]:
    try:
        value = np.asarray(run())
    except Exception as error:
        return [Anomaly("stale error", Stage.DISPATCH, f"{label} failed: {summary(error)}")]
    if value.dtype != wanted.dtype or not np.array_equal(value, wanted):
        witness = f"{label} gave {value.tolist()}, expected {wanted.tolist()}"
        return [Anomaly("result", Stage.RESULT, witness)]
    return []


def check_failed_barrier(bench: Bench, text: str) -> list[Anomaly]:
    """The next barrier reports the failure, and the one after it does not."""
    expected = bench.implementation.callback_exception.__name__
    try:
        bench.implementation.barrier()
    except bench.implementation.callback_exception as error:
        if text not in str(error):
            witness = f"the barrier's error does not mention {text!r}: {summary(error)}"
            return [Anomaly("poor error", Stage.BARRIER, witness)]
        return check_quiet_barrier(bench, "for a second time")
    except Exception as error:
        witness = f"the barrier must raise {expected}, raised {summary(error)}"
        return [Anomaly("wrong error", Stage.BARRIER, witness)]
    return [Anomaly("swallowed error", Stage.BARRIER, f"the barrier did not raise {expected}")]


def still_alive(references: Mapping[str, weakref.ref[Any]], before: Callable[[], Any] = lambda: None) -> list[str]:
    """The names of the objects that are alive although nobody has them; each look comes after `before`.

    Results are there a moment before a thread of the runtime lets their executable go, and this the functions.
    """
    end = time.monotonic() + LATEST_SECONDS
    while True:
        before()
        gc.collect()
        alive = [name for name, reference in references.items() if reference() is not None]
        if not alive or time.monotonic() > end:
            return alive
        time.sleep(0.01)


_SUITE = Path(__file__).parents[2]
_IMPLEMENTATIONS = (_SUITE / "implementations", _SUITE / "mutants")


def is_of_the_program(error: Exception, implementation: Implementation) -> bool:
    """Whether an exception comes from the implementation, and not from an error in the suite."""
    if isinstance(error, JaxRuntimeError | implementation.callback_exception):
        return True
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if any(raised_in.is_relative_to(folder) for folder in _IMPLEMENTATIONS):
        return True
    return not raised_in.is_relative_to(_SUITE)


@contextlib.contextmanager
def flag(name: str) -> Iterator[None]:
    """Set a flag of JAX's configuration, which has its default again afterwards."""
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, None)
