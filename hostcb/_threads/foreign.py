"""Mark the frames of JAX's own callbacks: hostcb must know when a thread is inside one of them (H13).

A program cannot go on before its callback returns. So a barrier inside one of JAX's callbacks would wait for ever: for
the program itself if it also has hostcb's callbacks, or else for later programs on several devices. hostcb refuses such
a barrier, as it refuses one inside its own callbacks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import _compat
from .running import called_by_runtime, running, runs_callbacks


class ForeignCallbacks:
    """JAX's own callbacks in one module, and the module's `Program` if it also holds hostcb's callbacks."""

    def __init__(self) -> None:
        # None if the module holds no hostcb callback: then no barrier waits for it.
        self.program: Any = None
        self._any = False

    def attach_program(self, program: Any) -> None:
        """Note that the module also holds hostcb's callbacks."""
        self.program = program
        program.has_only_own_callbacks = program.has_only_own_callbacks and not self._any

    def wrap(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Return `callback` with a marked frame around it."""
        self._any = True
        if self.program is not None:
            self.program.has_only_own_callbacks = False
        if not inspect.isfunction(callback):
            return callback

        def called(*args: Any) -> Any:
            # No mark is needed in the dispatching thread, which cannot have dispatched a later program.
            if self.program is None and running.thread_is_pythons:
                return callback(*args)
            return inside(self.program, args)

        @called_by_runtime
        @runs_callbacks
        def inside(program: Any, args: tuple[Any, ...]) -> Any:
            frame = running.frame
            outer = frame.depth
            frame.depth = outer + 1
            try:
                return callback(*args)
            finally:
                frame.depth = outer

        return called


def foreign_callbacks_of(module_context: Any) -> ForeignCallbacks:
    """Return the `ForeignCallbacks` of the module that JAX is lowering."""
    found: ForeignCallbacks = _compat.memory_of(module_context).setdefault(ForeignCallbacks, ForeignCallbacks())
    return found


add_host_callback = _compat.wrap_host_callbacks(
    lambda module_context, callback: foreign_callbacks_of(module_context).wrap(callback)
)
