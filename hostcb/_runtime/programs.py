"""A program that holds host callbacks, and an execution of it: its thread, its devices, and its end (H5)."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import sys
import threading
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

import jax

from .._compat import waiting
from .deadlines import Waiter
from .running import inside_handler, running
from .turns import Turns

# A thread that waits for a fast dispatch looks again after so many seconds whether it has ended by an exception. So
# many looks in a row have to say so.
LOOK_AGAIN = 0.1
LOOKS = 3


class Program:
    """One lowered module, shared by the handlers in it."""

    def __init__(self, callbacks: Sequence[str] = ()) -> None:
        self.callbacks = list(callbacks)
        # The name of its module, such as `jit_step`; empty outside jit.
        self.name = ""
        # The exception of the last failed call on each device.
        self.failures: dict[Any, BaseException] = {}
        # Whether one of the callbacks has an effect, so that JAX and barriers keep track of the executions.
        self.effectful = False
        # Whether it holds nothing but hostcb's callbacks, and nothing but taps, whose failures do not end it.
        self.alone = True
        self.only_taps = True
        # Whether another tool has wrapped a handler before JAX got it.
        self.wrapped = False
        # Whether JAX's fast dispatch calls its handlers; None until that is known, see `native`.
        self.native: bool | None = None
        # Whether it runs on several devices at once.
        self.spans_devices = False
        # Whether JAX tells of its executions, and the devices that it was lowered for, if they are known.
        self.told = True
        self.lowered_for: tuple[Any, ...] | None = None
        # Whether any of its executions was started from inside a callback; `nested_on` knows which.
        self.nested = False
        # Whether the library in C passes its taps to Python: while an execution goes on that was started from inside a
        # callback, or a dispatch in which a callback has failed. These dispatches say so, as long as they live.
        self.through_python = ctypes.c_int32(0)
        self._failing: dict[weakref.ref[Any], None] = {}
        # The turns of its devices, under pmap and shard_map.
        self.turns = Turns()
        # Its executions, in the order of their start.
        self._executions: dict[Execution, None] = {}
        self._last: Execution | None = None

    def add(self, execution: Execution) -> None:
        self.spans_devices = len(execution.devices) > 1
        if self.spans_devices and self.idle():
            self.turns.execution_begins()
        for each in list(self._executions):
            if each.done():
                self._executions.pop(each, None)
        self._executions[execution] = None
        self._last = execution
        if execution.nested:
            self.nested = True
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
                # Otherwise another thread has told C that it needs Python, before this one told the opposite.
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
            # The dispatch hooks were not told of an execution.
            devices = self.lowered_for
            if devices is None and not self.told:
                raise RuntimeError(f"{self} does not know its devices, because this JAX does not tell of executions.")
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
        return f"a program with {', '.join(self.callbacks) or 'host callbacks'}"


class Dispatch:
    """An event that is set when a dispatch has returned.

    The dispatching thread holds a lock, by a `with` statement of the lock itself. Python takes and releases it in one
    step, so an interrupt cannot leave the event unset for ever.
    """

    __slots__ = ("_returned", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._returned = False

    def abandon(self) -> None:
        """Count as set, in a forked child, and wake a barrier that a signal handler has interrupted to fork."""
        self._returned = True
        if self.lock.locked():
            # Its owner is a thread of the parent.
            self.lock.release()

    def is_set(self) -> bool:
        return self._returned or not self.lock.locked()

    def wait(self) -> None:
        if not self._returned:
            # A signal handler that forks in the block lets `abandon` release the lock in the child.
            with contextlib.suppress(RuntimeError), self.lock:
                # Set at once: other threads take a held lock for a dispatch that has not returned.
                self._returned = True


class FastDispatch(Dispatch):
    """As `Dispatch`, for JAX's fast dispatch: hostcb learns of its begin, and of its end unless it raises.

    The frame that dispatches stays at its instruction until the end. So its thread's stack shows that a dispatch has
    raised. In a loop over functions the frame may then call other C code at the same instruction: until that returns,
    other threads take it for the dispatch. They do not wait for a dispatch by C code that has no frame around it.
    """

    __slots__ = ("_caller", "_instruction", "_thread")

    def __init__(self, caller: FrameType | None) -> None:
        super().__init__()
        self.lock.acquire()
        # Its identity: the frame itself would keep its local variables alive after a dispatch that has raised.
        self._caller = id(caller)
        self._instruction = -1 if caller is None else caller.f_lasti
        self._thread = threading.get_ident()

    def end(self) -> None:
        if not self._returned:
            # No call comes between these.
            self._returned = True
            self.lock.release()

    def is_by(self, caller: FrameType | None) -> bool:
        return id(caller) == self._caller

    def is_set(self) -> bool:
        """Return whether it has ended; another thread is told so only by `end`."""
        if not self._returned and threading.get_ident() == self._thread and not self._is_around(sys._getframe()):
            self.end()
        return self._returned

    def wait(self) -> None:
        """Wait until it has ended, or until it is clear that it has raised."""
        gone = 0
        while not self._returned and gone < LOOKS:
            found = self._is_around(sys._current_frames().get(self._thread))
            # A generator that another thread suspends in the middle of the look has no frames around it.
            gone = 0 if found else gone + 1
            if self.lock.acquire(timeout=LOOK_AGAIN if found else LOOK_AGAIN / 10):
                self.lock.release()
        self.end()

    def _is_around(self, frame: FrameType | None) -> bool:
        """Return whether a stack has the frame that dispatches, at its instruction."""
        while frame is not None:
            if id(frame) == self._caller:
                return frame.f_lasti == self._instruction
            frame = frame.f_back
        return False


@dataclasses.dataclass(eq=False)
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
    # Set when the dispatch has returned or raised.
    returned: Dispatch = dataclasses.field(default_factory=Dispatch)
    # Whether JAX has handed it to the runtime, and then the runtime's tokens, one a device.
    launched: bool = False
    tokens: Sequence[Any] | None = None
    ordered: bool = True
    # The number of user functions around the dispatch, and the execution around it, in the dispatching thread.
    depth: int = 0
    outer: Execution | None = None
    # The exception of a callback that failed in the dispatching thread.
    failure: BaseException | None = None
    # The thread that waits for it on behalf of the barriers with a deadline.
    waiter: Waiter | None = None

    @property
    def state(self) -> str:
        return "runs" if self.returned.is_set() else "is being dispatched"

    @property
    def fast(self) -> bool:
        """Whether JAX's fast dispatch started it."""
        return isinstance(self.returned, FastDispatch)

    def is_dispatched_by(self, caller: FrameType | None) -> bool:
        """Return whether this is a fast dispatch that the frame `caller` made."""
        return isinstance(self.returned, FastDispatch) and self.returned.is_by(caller)

    def dispatched_here(self) -> bool:
        """Return whether the current thread is dispatching it, and so cannot wait for it."""
        return self.thread == threading.get_ident() and not self.returned.is_set()

    def abandon(self) -> None:
        """Count as ended, in a forked child."""
        self.tokens, self.launched = (), False
        self.returned.abandon()

    def done(self) -> bool:
        if not self.returned.is_set() or self._may_run_unseen():
            return False
        return all(token.is_ready() for token in self.tokens or ())

    def wait(self) -> None:
        """Wait until it has ended, with or without a failure."""
        self.returned.wait()
        if self._may_run_unseen():
            waiting.settle_devices(self.devices)
            self.tokens = ()
        for token in self.tokens or ():
            waiting.settle(token)

    def wait_on(self, devices: Sequence[Any]) -> None:
        """Wait until it has ended on `devices`."""
        if self._may_run_unseen():
            self.wait()
        for device, token in zip(self.devices, self.tokens or (), strict=False):
            if device in devices:
                waiting.settle(token)

    def _may_run_unseen(self) -> bool:
        """Return whether an interrupt came after the launch on several devices and before JAX reported the tokens."""
        return self.launched and self.tokens is None and len(self.devices) > 1 and self.returned.is_set()

    def __str__(self) -> str:
        return f"{self.program} {self.state} on {', '.join(map(str, self.devices))}"
