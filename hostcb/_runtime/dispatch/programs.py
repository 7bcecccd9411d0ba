"""A program that holds host callbacks, and an execution of it: its thread, its devices, and its end (H5)."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import jax

from ..._compat import waiting
from ..._threads.deadlines import Waiter
from ..._threads.running import inside_handler, running
from .dispatches import Dispatch


class Program:
    """One lowered module, shared by the handlers in it."""

    def __init__(self, callbacks: Sequence[object] = ()) -> None:
        # Their names are made when a text needs them.
        self.callbacks = list(callbacks)
        # The name of its module, such as `jit_step`; empty outside jit.
        self.name = ""
        # The exception of the last failed call on each device.
        self.failures: dict[Any, BaseException] = {}
        # Whether one of the callbacks keeps an order, so that executions wait for earlier ones.
        self.keeps_order = False
        # Whether one of the callbacks has an effect, so that JAX and barriers keep track of the executions.
        self.effectful = False
        # Whether it holds nothing but hostcb's callbacks, and nothing but taps, whose failures do not end it.
        self.has_only_own_callbacks = True
        self.only_taps = True
        # Whether another tool has wrapped a handler before JAX got it.
        self.wrapped = False
        # Whether JAX's fast dispatch calls its handlers; None until that is known, see `cpp_dispatch`.
        self.takes_cpp_dispatch: bool | None = None
        # Whether it runs on several devices at once.
        self.spans_devices = False
        # Whether JAX reports its executions, and the devices that it was lowered for, if they are known.
        self.is_tracked = True
        self.lowered_for: tuple[Any, ...] | None = None
        # Whether any of its executions was started from inside a callback; `nested_on` knows which.
        self.nested = False
        # Whether the extension passes its taps to Python: while an execution goes on that was started from inside a
        # callback, or a dispatch in which a callback has failed. These dispatches say so, as long as they live.
        self.through_python = ctypes.c_int32(0)
        self._failing: dict[weakref.ref[Any], None] = {}
        # Whether anything but a daemon thread has started it, so that the exit waits for it.
        self.awaited = False
        # Its executions, in the order of their start.
        self._executions: dict[Execution, None] = {}
        self._last: Execution | None = None

    def add(self, execution: Execution) -> None:
        self.spans_devices = len(execution.devices) > 1
        for each in list(self._executions):
            if each.done():
                self._executions.pop(each, None)
        self._executions[execution] = None
        self._last = execution
        if execution.nested:
            self.nested = True
        if self.nested or self._failing or self.through_python.value:
            self._tell_c()

    def goes_through_python(self, failing: Any) -> None:
        """Let taps come to Python, which knows of failures, until `failing` is over or is nowhere referred to."""
        self._failing[weakref.ref(failing)] = None
        self._tell_c()

    def is_over(self, failing: Any) -> None:
        self._failing.pop(weakref.ref(failing), None)
        self._tell_c()

    def _tell_c(self) -> None:
        while True:
            told = self.through_python.value = self._needs_python()
            if self._needs_python() <= told:
                # Otherwise another thread has written that C needs Python, before this one wrote the opposite.
                return

    def _needs_python(self) -> bool:
        for failing in list(self._failing):
            if failing() is None:
                self._failing.pop(failing, None)
        return bool(self._failing) or (self.nested and any(each.nested for each in list(self._executions)))

    def drop(self, execution: Execution) -> None:
        """Forget an execution that has ended."""
        self._executions.pop(execution, None)
        if execution.nested:
            self._tell_c()

    def idle(self) -> bool:
        return all(execution.done() for execution in list(self._executions))

    def nested_on(self, device: Any) -> bool:
        """Return whether a handler that runs on `device` belongs to an execution started from inside a callback."""
        dispatching = running.frame.execution
        if dispatching is not None and dispatching.program is self:
            return bool(dispatching.nested)
        # In another thread the handler's execution is not known, only the candidates.
        live = [each for each in list(self._executions) if device in each.devices and not each.done()]
        return bool(live) and all(each.nested for each in live)

    def starters_on(self, device: Any) -> set[int]:
        """Return the threads that have started an execution on `device` from inside a callback, if it has not ended."""
        return {
            each.thread for each in list(self._executions) if each.nested and device in each.devices and not each.done()
        }

    def device_at(self, position: int) -> Any:
        """Return the device at a position of the mesh on which the program runs.

        The program may have been started on several meshes. The runtime runs executions in the order of their start.
        """
        if self._last is None:
            # The dispatch hooks have seen no execution.
            devices = self.lowered_for
            if devices is None and not self.is_tracked:
                raise RuntimeError(f"{self} does not know its devices, because this JAX does not report executions.")
            # An executable that the user took out of its program: a mesh of all devices is the best guess.
            return (devices or jax.devices())[position]
        current = next((execution for execution in list(self._executions) if not execution.done()), self._last)
        return current.mesh[position]

    def __reduce__(self) -> Any:
        # JAX serializes an executable together with what the executable keeps alive.
        raise TypeError(
            f"hostcb: {self} cannot be serialized. A host callback is a function of this process, and the process that "
            "loads the program would not have it. Let that process compile its own program. With JAX 0.11 and newer, "
            "processes share the compiler's work by jax_compilation_cache_dir."
        )

    def __str__(self) -> str:
        return f"a program with {', '.join(map(str, self.callbacks)) or 'host callbacks'}"


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Execution:
    """One run of a program, from its dispatch until its tokens are there on every device."""

    program: Program
    # The program's devices in this process, and in all processes.
    devices: tuple[Any, ...]
    mesh: tuple[Any, ...]
    # Whether it was started from inside a callback.
    nested: bool = dataclasses.field(default_factory=inside_handler)
    # The dispatching thread.
    thread: int = dataclasses.field(default_factory=threading.get_ident)
    # The call that dispatches it, and whether JAX's fast dispatch makes it.
    dispatch: Dispatch = dataclasses.field(default_factory=Dispatch)
    fast: bool = False
    # Whether JAX has handed it to the runtime, and then the tokens of its end, one a device: arrays, or tokens of the
    # runtime, which become ready only when they are waited for.
    launched: bool = False
    tokens: Sequence[Any] | None = None
    has_arrays: bool = True
    # The number of user functions around the dispatch, and the execution around it, in the dispatching thread.
    depth: int = 0
    outer: Execution | None = None
    # The exception of a callback that failed in the dispatching thread.
    failure: BaseException | None = None
    # The thread that waits for it on behalf of the barriers with a deadline.
    waiter: Waiter | None = None

    @property
    def state(self) -> str:
        return "runs" if self.dispatch.has_ended() else "is being dispatched"

    def dispatched_here(self) -> bool:
        """Return whether the current thread is dispatching it, and so cannot wait for it."""
        return self.thread == threading.get_ident() and not self.dispatch.has_ended()

    def abandon(self) -> None:
        """Count as ended, in a forked child."""
        self.tokens, self.launched = (), False
        self.dispatch.end()

    def done(self) -> bool:
        if not self.dispatch.has_ended() or self.may_run_unseen():
            return False
        return all(waiting.is_ready(token) for token in self.tokens or ())

    def wait(self) -> None:
        """Wait until it has ended, with or without a failure."""
        self.dispatch.wait()
        if self.may_run_unseen():
            waiting.settle_devices(self.devices)
            self.tokens = ()
        for token in self.tokens or ():
            waiting.settle(token)

    def followed(self) -> Any:
        """Start a program that ends after this one, and return its result; None while this one is being dispatched.

        The token of an unordered execution becomes ready only when it is waited for, which has no timeout.
        """
        return waiting.one_more(self.devices) if self.dispatch.has_ended() else None

    def wait_on(self, devices: Sequence[Any]) -> None:
        """Wait until it has ended on `devices`."""
        if self.may_run_unseen():
            self.wait()
        for device, token in zip(self.devices, self.tokens or (), strict=False):
            if device in devices:
                waiting.settle(token)

    def may_run_unseen(self) -> bool:
        """Return whether the dispatch raised after the launch and before JAX reported the tokens."""
        return self.has_no_tokens() and self.dispatch.has_ended()

    def has_no_tokens(self) -> bool:
        """Return whether JAX has launched it and not reported the tokens, and may run it: not on one CPU device."""
        if not self.launched or self.tokens is not None:
            return False
        return len(self.devices) > 1 or self.devices[0].platform != "cpu"
