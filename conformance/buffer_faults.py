"""Fault cells of functions that keep the buffers they were lent, or arrays that look at them.

While an array lives that `np.asarray` made of a buffer of JAX's, a later buffer that is made at the same place of the
stack is taken for the old one. So callbacks are made at many depths of the stack, and then again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from conformance.bench import Bench
from conformance.callbacks import Callback
from conformance.checkers import Anomaly
from conformance.execution import summary
from conformance.fault_checks import PLANTED
from conformance.verdicts import Stage

DEPTH = 12


def deeper(through_map: int, through_reduce: int, run: Callable[[], Any]) -> Any:
    """Run a function below so many frames of C functions, of two sizes."""
    if through_map:
        return next(map(lambda _: deeper(through_map - 1, through_reduce, run), [None]))  # noqa: C417 - its frame is the point
    if through_reduce:
        return functools.reduce(lambda *_: deeper(0, through_reduce - 1, run), [None, None])
    return run()


def _at_all_depths(run: Callable[[], Any]) -> Iterator[Exception | None]:
    for through_map in range(DEPTH):
        for through_reduce in range(DEPTH):
            try:
                deeper(through_map, through_reduce, run)
            except Exception as error:
                yield error
            else:
                yield None


def keeps_its_view(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Arrays over the memory of operands are kept, and later callbacks are given their own operands all the same."""
    kept: dict[int, Any] = {}

    def keep(buffer: Any) -> None:
        array = np.asarray(buffer)
        # One for each object that is kept alive is enough.
        kept.setdefault(id(array.base), array)

    keeping = _compiled(bench, callback, keep)
    return _check_not_misled(bench, callback, lambda: float(keeping(np.float32(1))))


def fails_and_is_kept(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The exception of a callback is kept, and with its traceback whatever the function had made of its buffers."""
    kept: list[BaseException] = []

    def fail(buffer: Any) -> None:
        array = np.asarray(buffer)
        raise ValueError(PLANTED, array.shape)

    failing = _compiled(bench, callback, fail)

    def run() -> None:
        try:
            float(failing(np.float32(1)))
        except Exception as error:
            kept.append(error)

    return _check_not_misled(bench, callback, run)


def _compiled(bench: Bench, callback: Callback, look: Callable[[Any], None]) -> Callable[[Any], Any]:
    return jax.jit(lambda x: bench.implementation.with_buffer(callback, look, x))


def _check_not_misled(bench: Bench, callback: Callback, disturb: Callable[[], Any]) -> list[Anomaly]:
    later = _compiled(bench, callback, lambda buffer: None)
    for error in _at_all_depths(disturb):
        # Some of these may be misled already.
        del error
    values: list[float] = []
    errors = [error for error in _at_all_depths(lambda: values.append(float(later(np.float32(3))))) if error]
    try:
        bench.implementation.barrier()
    except Exception as error:
        # The failures that were planted.
        del error
    if errors:
        witness = f"{len(errors)} of {DEPTH * DEPTH} later callbacks failed: {summary(errors[0])}"
        return [Anomaly("misled", Stage.DISPATCH, witness)]
    if {*values} - {4.0}:
        return [Anomaly("misled", Stage.RESULT, f"later callbacks gave {sorted({*values})}, expected 4.0 alone")]
    return []
