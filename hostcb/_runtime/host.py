"""The host side of one callback in one program, which its handler calls (H5, H11, H14, H15, X1, B1)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _compat
from .._errors.advice import advise
from .._errors.failures import failure_log, formatted
from .._errors.refusals import HostcbCallbackError, is_hostcbs, refusal
from .._spec.callback import HostCallback, Transforms
from .._spec.failure_policy import OnError
from .._spec.naming import class_name, transferable
from .._spec.shapes import size_of
from .._threads.running import inside_callback, running, runs_callbacks
from .._threads.switching import switch_interval
from .._threads.thread_states import is_pythons
from .dispatch.programs import Program
from .executions.failed_calls import failed_calls
from .observing import observers
from .queue.items import Item
from .queue.queues import queues
from .results import conform


def _outside_the_mesh(invoke: Callable[..., Any]) -> Callable[..., Any]:
    """Return `invoke` for a program that JAX may dispatch in this thread under the mesh of `jax.set_mesh`."""

    def invoked(*operands: Any) -> Any:
        if _compat.mesh_is_set():
            with _compat.without_mesh():
                return invoke(*operands)
        return invoke(*operands)

    return invoked


class Host:
    """Hands operands to a user function and, for a call, returns its results."""

    def __init__(
        self,
        callback: HostCallback,
        transforms: Transforms,
        operand_avals: Sequence[Any],
        result_avals: Sequence[Any],
        program: Program,
    ):
        self.callback = callback
        self.operand_avals = tuple(operand_avals)
        self.result_avals = tuple(result_avals)
        self.program = program
        # The bytes that one value takes in the queue.
        self.nbytes = sum(map(size_of, operand_avals))
        invoke = callback.invoker(transforms)
        self._invoke = _outside_the_mesh(invoke) if callback.kind.pure else invoke
        self._with_device = callback.with_device
        # For the quick check of a result that is one array, as for nearly every callback.
        one = callback.result_tree is not None and callback.returns_one_array
        self._shape: Any = result_avals[0].shape if one else None
        self._dtype: Any = result_avals[0].dtype if one else None
        self._ordered = callback.kind.ordered
        # What a trace says of it, see `recording`.
        self.about: dict[str, Any] | None = None

    @property
    def nested(self) -> bool:
        """Whether its program was ever started from inside a callback."""
        return self.program.nested

    def make_room(self, device: Any) -> None:
        """Wait for room in the queue; a handler calls this before it copies a large value for `tap`."""
        if not (self._runs_here(device) or self._is_waited_for(device)):
            queues[device].make_room(self.nbytes)

    def _runs_here(self, device: Any) -> bool:
        if running.frame.depth and inside_callback():
            return True
        return self.program.nested and self.program.nested_on(device)

    def _is_waited_for(self, device: Any) -> bool:
        """Return whether the function that the device's queue runs has started this program, and may wait for it.

        While another thread runs the program as well, it is not known whose handler this is. Either way it must not
        wait for that function: the runtime runs the two executions one after the other.
        """
        program = self.program
        return program.nested and queues[device].is_run_by(program.starters_on(device))

    def tap(self, device: Any, arrays: Sequence[np.ndarray]) -> None:
        """Queue the value and return; the device does not wait for the function."""
        switch_interval.callback_begins()
        if self._runs_here(device):
            # The callback that waits for this program may hold the queue, so the function runs in this thread.
            self.deliver(device, Item(self, arrays))
            self.ran_unqueued(device)
            return
        observing = observers.on
        waits = not self._is_waited_for(device)
        if observing is None or not observing.of_hand_overs:
            queues[device].put(self, arrays, waits)
        else:
            observing.hand_over(self, device, arrays, functools.partial(queues[device].put, self, waits=waits))

    def offer(self, device: Any, arrays: Sequence[np.ndarray]) -> bool:
        """As `tap`, outside of callbacks and programs, but return False if that might wait or a trace is on."""
        switch_interval.callback_begins()
        observing = observers.on
        return (observing is None or not observing.of_hand_overs) and queues[device].offer(self, arrays)

    def ran_unqueued(self, device: Any) -> None:
        """Count a tap that did not go through the queue."""
        queues[device].counts.unqueued.add(1, self.nbytes)

    @runs_callbacks
    def deliver(self, device: Any, item: Item) -> None:
        """Run the function on a tapped value. Its exceptions are recorded, not raised: the device goes on (H14).

        An interrupt before the function has begun is raised. The value then stays where it is, and runs later.
        """
        switch_interval.callback_begins()
        frame = running.frame
        outer = frame.depth
        frame.depth = outer + 1
        try:
            observing = observers.on
            invoke = functools.partial(self._invoke, device) if self._with_device else self._invoke
            if observing is None:
                item.hand_to(invoke)
            else:
                # An interrupt in what observes comes before the function begins, or after it.
                observing.around(self, device, item.arrays, functools.partial(item.hand_to, invoke))()
        except BaseException as exception:
            if not item.begun:
                raise
            self._record(device, exception, self.callback.on_error or "barrier")
        finally:
            # Restored, not decremented: an interrupt may have left the depth too high.
            frame.depth = outer

    def call(self, device: Any, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Run the user function and return its results.

        Raises:
            HostcbCallbackError: the function failed or its result does not match. The failure is recorded, and is the
                cause.
        """
        try:
            return self.run(device, arrays)
        except BaseException as exception:
            error = self.refused(device, exception)
            try:
                raise error from error.__cause__
            finally:
                # Its traceback has this frame.
                del error

    def refused(self, device: Any, exception: BaseException) -> HostcbCallbackError:
        """Record a failure, and return the error for the device."""
        self.failed(device, exception)
        return self._refusal(device, exception, marked=False)

    def failed(self, device: Any, exception: BaseException, on_all: bool = False) -> None:
        """Record a failure for the end of the program, and usually for the barrier.

        `on_all` says that all devices of the program learn of it and end.
        """
        failed_calls.keep(self.program, device, exception)
        self.report(device, exception, on_all)

    def report(self, device: Any, exception: BaseException, on_all: bool = False) -> None:
        """Report a failure as the callback does, or else by the next barrier."""
        if self.callback.report_failure is not None:
            if observers.on is not None:
                observers.on.failed(device)
            self.callback.report_failure(exception)
        else:
            self._record(device, exception, None, on_all)

    def marked(self, device: Any) -> HostcbCallbackError:
        """Return the error for a device that received the mark of a failed call."""
        return self._refusal(device, self.program.failures.get(device), marked=True)

    @runs_callbacks
    def run(self, device: Any, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Run the user function in this thread, and return its checked results.

        Its exceptions are raised, or recorded if the callback has a policy for them.
        """
        switch_interval.callback_begins()
        frame = running.frame
        outer = frame.depth
        if self._ordered and not (outer and inside_callback(sys._getframe(1))):
            # First run the taps that this device has queued.
            program = self.program
            if not (program.nested and (program.nested_on(device) or self._is_waited_for(device))):
                queue = queues[device]
                if queue.is_pending():
                    queue.drain()
        frame.depth = outer + 1
        try:
            observing = observers.on
            invoke = self._invoke if observing is None else observing.around(self, device, arrays, self._invoke)
            result = invoke(device, *arrays) if self._with_device else invoke(*arrays)
            # `_shape` is None unless one array is expected; then this check fails.
            if type(result) is np.ndarray and result.shape == self._shape and result.dtype == self._dtype:
                return (result,)
            if self.callback.result_tree is None:
                # No result was asked for, so the returned value is ignored.
                return ()
            return conform(result, self.callback, self.result_avals, len(self.program.lowered_for or (None,)))
        except BaseException as exception:
            if self.callback.on_error is None:
                raise
            self._record(device, exception, self.callback.on_error)
            return ()
        finally:
            frame.depth = outer

    def _record(self, device: Any, exception: BaseException, on_error: OnError | None, on_all: bool = False) -> None:
        if observers.on is not None:
            observers.on.failed(device)
        if not is_hostcbs(exception):
            advise(self.callback, exception)
        # In a thread of Python this is a handler of a program on one device, or a callback outside jit.
        dispatched_here = on_error is None and not self.program.spans_devices and is_pythons()
        alone = on_error is None and self.program.spans_devices and not on_all
        failure_log.record(
            self.callback.name, device, exception, on_error, self.callback.kind.name, dispatched_here, alone
        )

    def _refusal(self, device: Any, failure: BaseException | None, marked: bool) -> HostcbCallbackError:
        reason = formatted(failure) if failure is not None else "It happened there: see the log of that process."
        try:
            text = refusal(self.callback, self.result_avals, device, failure, reason, marked)
        except Exception as raised:
            # The computation has to end in any case, and the failure is recorded.
            text = (
                f"{self.callback.kind.name}: a callback failed, and the text of its failure raised {class_name(raised)}"
            )
        error = HostcbCallbackError(transferable(text))
        error.__cause__ = failure
        return error
