"""The exceptions of failed calls, from the call to the error that ends its program (H15)."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from ..._errors.failures import beside_cause, failure_log, shown_cause
from ..._threads.running import running
from ..dispatch.programs import Execution, Program


class FailedCalls:
    """The programs that keep exceptions of their calls."""

    def __init__(self) -> None:
        self._programs: dict[weakref.ref[Program], None] = {}

    def forget(self) -> None:
        """In a forked child, which runs none of its parent's programs."""
        self._programs = {}

    def keep(self, program: Program, device: Any, failure: BaseException) -> None:
        """Keep the exception of a failed call, for the end of the program and the operation that refuses the result."""
        program.failures[device] = failure
        dispatching = running.frame.execution
        if dispatching is not None and dispatching.program is program:
            # Other threads may run the same program at the same time and fail for other reasons.
            dispatching.failure = failure
        programs = self._programs
        programs[weakref.ref(program, lambda dead: programs.pop(dead, None))] = None

    def drop_ended(self) -> None:
        """Drop the exceptions of programs that have ended; an exception keeps its frames and their arrays alive."""
        for reference in list(self._programs):
            program = reference()
            if program is not None and program.idle():
                program.failures.clear()
                self._programs.pop(reference, None)

    def explain(self, error: jax.errors.JaxRuntimeError, execution: Execution) -> None:
        """Give the error with which a dispatch ends, as it goes up to the program, the cause and the text."""
        # The key is None if the handler did not know its device.
        failures = [execution.program.failures.pop(device, None) for device in (*execution.devices, None)]
        # Not their truth values: an exception may have a length.
        found = next((failure for failure in (execution.failure, *failures) if failure is not None), None)
        if found is not None:
            error.__cause__ = shown_cause(found)
            failure_log.raised(found, error if found is execution.failure else None)
            # A new error would lose the traceback.
            type(error).__init__(error, beside_cause(str(error), error.__cause__))


failed_calls = FailedCalls()
