"""The host's side of one callback in one program: what the runtime calls (H5, H11, H14, H15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._callback import HostCallback, Transforms
from ._executions import Program
from ._failures import ledger
from ._queues import Tapped, queues
from ._results import ERROR_MARK, RefusedResultError, conform, refusal
from ._running import state


class Host:
    """Takes operands to a user function, and for a call its results back."""

    def __init__(
        self,
        callback: HostCallback,
        transforms: Transforms,
        operand_dtypes: Sequence[np.dtype],
        result_avals: Sequence[Any],
        program: Program,
    ):
        self.callback = callback
        self.transforms = transforms
        self.operand_dtypes = tuple(operand_dtypes)
        self.result_avals = tuple(result_avals)
        self.program = program

    def tap(self, device: Any, arrays: Sequence[np.ndarray]) -> None:
        """Take the value and return: the device does not wait for the function."""
        tapped = Tapped(self.callback, self.transforms, device, arrays)
        if state.depth or self.program.nested:
            self._nested_tap(tapped)
        else:
            queues[device].put(tapped)

    def call(self, device: Any, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The results of the user function, or `ERROR_MARK` alone where there are none."""
        try:
            return self.run(device, arrays)
        except BaseException as exception:
            self.program.failure = exception
            ledger.record(self.callback.name, device, exception)
            return (ERROR_MARK,)

    def run(self, device: Any, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Run the user function now, after everything that this device tapped before; what it raises gets out."""
        program = self.program
        if not (state.depth or (program.nested and program.is_nested())):
            queues[device].drain()
        held = state.holds_gang
        state.depth += 1
        state.holds_gang = held or program.is_gang()
        try:
            result = self.callback.invoke(arrays, device, self.transforms)
            return () if self.callback.kind.identity else conform(result, self.callback, self.result_avals)
        finally:
            state.depth -= 1
            state.holds_gang = held

    def refuse(self, device: Any) -> RefusedResultError:
        """The error with which the device meets `ERROR_MARK`."""
        failure = self.program.failure
        reason = f"{type(failure).__name__}: {failure}" if failure else "it happened in another process, see its log"
        error = RefusedResultError(refusal(self.callback, self.result_avals, device, reason))
        error.__cause__ = failure
        return error

    def _nested_tap(self, tapped: Tapped) -> None:
        if state.depth or self.program.is_nested():
            # The queue may be held by the very callback that waits for this program, so the function runs here.
            tapped.run()
        else:
            queues[tapped.device].put(tapped)


def refused(payload: Sequence[np.ndarray]) -> bool:
    return len(payload) == 1 and payload[0] is ERROR_MARK


Handler = Callable[..., Any]


def restorer(stored: Sequence[np.dtype], logical: Sequence[np.dtype]) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Undo the widening that types without a byte of their own travel in."""
    if list(stored) == list(logical):
        return lambda arrays: arrays

    def restore(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [array.astype(dtype, copy=False) for array, dtype in zip(arrays, logical, strict=True)]

    return restore
