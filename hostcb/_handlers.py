"""The host's side of one callback in one program: what the runtime calls (H5, H11, H14, H15, X1, B1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._callback import HostCallback, Transforms
from ._executions import Program, account
from ._failures import formatted, ledger
from ._queues import queues
from ._results import Refused, RefusedResultError, conform, refusal
from ._running import running
from ._wire import size_of


class Host:
    """Takes operands to a user function, and for a call its results back."""

    def __init__(
        self,
        callback: HostCallback,
        transforms: Transforms,
        operand_avals: Sequence[Any],
        result_avals: Sequence[Any],
        program: Program,
    ):
        self.callback = callback
        self.transforms = transforms
        self.result_avals = tuple(result_avals)
        self.program = program
        # What a value takes in the queue.
        self.nbytes = sum(map(size_of, operand_avals))
        # Of nearly every callback, and found out once: that the arrays are its arguments, and its result one array.
        self._function = callback.function if callback.takes_only_arrays else None
        self._told_no_transforms = callback.function if callback.is_told_of_transforms and not transforms else None
        one = callback.result_tree is not None and callback.returns_one_array
        self._shape: Any = result_avals[0].shape if one else None
        self._dtype: Any = result_avals[0].dtype if one else None
        self._ordered = callback.kind.ordered

    def make_room(self, device: Any) -> None:
        """To be called before a large value is copied for `tap`."""
        if not self._runs_here(device):
            queues[device].make_room(self.nbytes)

    def _runs_here(self, device: Any) -> bool:
        return running.frame.depth > 0 or (self.program.nested and self.program.nested_on(device))

    def tap(self, device: Any, arrays: Sequence[np.ndarray]) -> None:
        """Take the value and return: the device does not wait for the function."""
        if self._runs_here(device):
            # The queue may be held by the very callback that waits for this program, so the function runs here.
            self.deliver(device, arrays)
        else:
            queues[device].put(self, arrays)

    def deliver(self, device: Any, arrays: Sequence[np.ndarray]) -> None:
        """Run the function on a tapped value. Nothing that it raises gets out: the device must not notice (H14)."""
        frame = running.frame
        frame.depth += 1
        try:
            function = self._told_no_transforms
            if function is not None:
                function(arrays[0], ())
            else:
                self.callback.invoke(arrays, device, self.transforms)
        except BaseException as exception:
            ledger.record(self.callback.name, device, exception, postponed=True)
        finally:
            frame.depth -= 1

    def call(self, device: Any, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The results of the user function, or `Refused` where there are none."""
        try:
            return self.run(device, arrays)
        except BaseException as exception:
            return self.failed(device, exception)

    def failed(self, device: Any, exception: BaseException) -> Refused:
        """Keep a failure for the barrier and for whoever refuses the result."""
        account.failed(self.program, device, exception)
        ledger.record(self.callback.name, device, exception, postponed=False)
        return Refused(exception)

    def run(self, device: Any, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Run the user function now; what it raises gets out."""
        frame = running.frame
        if self._ordered and not frame.depth:
            # After everything that this device tapped before.
            program = self.program
            if not (program.nested and program.nested_on(device)):
                queue = queues[device]
                if queue.finished != queue.accepted:
                    queue.drain()
        held = frame.holds_gang
        frame.depth += 1
        frame.holds_gang = held or self.program.gang
        try:
            function = self._function
            if function is not None:
                result = function(*arrays)
            else:
                result = self.callback.invoke(arrays, device, self.transforms)
            # The shape first, which is None where any other result is expected.
            if type(result) is np.ndarray and result.shape == self._shape and result.dtype == self._dtype:
                return (result,)
            if self.callback.result_tree is None:
                # Nothing was asked for, so whatever came is ignored.
                return ()
            return conform(result, self.callback, self.result_avals)
        finally:
            frame.depth -= 1
            frame.holds_gang = held

    def refuse(self, device: Any, failure: BaseException | None) -> RefusedResultError:
        """The error with which a device meets `Refused`."""
        reason = formatted(failure) if failure else "it happened in another process: see its log"
        error = RefusedResultError(refusal(self.callback, self.result_avals, device, reason))
        error.__cause__ = failure
        return error

    def refuse_failed(self, device: Any, exception: BaseException) -> RefusedResultError:
        """Keep a failure, and the error for it."""
        return self.refuse(device, self.failed(device, exception).failure)
