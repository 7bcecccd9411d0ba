"""What is running: the account of executions that hold host callbacks, and the order between them (H5, H13).

JAX keeps the tokens that order effects per thread, so that two threads are not ordered, and passes the token of one
execution to the next, so that a failed one makes every later one fail. Here each execution starts with a token that
is ready, and the order between executions comes from waiting for those that were started before.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import _hooks, _pool
from ._native import is_simple
from ._queues import queues
from ._running import inside_callback, running
from ._turns import Turns

# How many executions are kept before those that have ended are looked for.
MANY = 64


class Program:
    """One lowered module, shared by the handlers in it."""

    def __init__(self, callbacks: Sequence[str] = ()) -> None:
        self.callbacks = list(callbacks)
        # Why the last call of each device failed.
        self.failures: dict[Any, BaseException] = {}
        # Whether one of the callbacks has an effect, so that JAX and barriers keep track of the executions.
        self.effectful = False
        # Whether JAX's fast dispatch calls its handlers, once that is known; see `_native`.
        self.native: bool | None = None
        # Whether it runs on several devices at once.
        self.gang = False
        # Whether one of its executions may have been started from inside a callback; `nested_on` knows for certain.
        self.nested = False
        # Whose turn it is to call back, where devices do so each for itself.
        self.turns = Turns()
        # In the order in which they were started. Replaced rather than changed, for those that read it meanwhile.
        self._executions: tuple[Execution, ...] = ()

    def add(self, execution: Execution) -> None:
        self.gang = len(execution.devices) > 1
        if self.gang and self.idle():
            self.turns.execution_begins()
        self._executions = (*(each for each in self._executions if not each.done()), execution)
        self.nested = any(each.nested for each in self._executions)

    def idle(self) -> bool:
        return all(execution.done() for execution in self._executions)

    def nested_on(self, device: Any) -> bool:
        """Whether a handler that runs on `device` now belongs to an execution that was started inside a callback."""
        dispatching = running.frame.execution
        if dispatching is not None and dispatching.program is self:
            return bool(dispatching.nested)
        # On another thread the execution cannot be told, only those that it may be.
        live = [each for each in self._executions if device in each.devices and not each.done()]
        return bool(live) and all(each.nested for each in live)

    def device_at(self, position: int) -> Any:
        """The device at a position of the mesh that the program runs on.

        The same program may have been started on several meshes; the runtime runs them in the order of their start.
        """
        executions = self._executions
        if not executions:
            # Without the hooks there is no account; a mesh of all devices is the best guess.
            return jax.devices()[position]
        current = next((execution for execution in executions if not execution.done()), executions[-1])
        return current.mesh[position]

    def __str__(self) -> str:
        return f"a program with {', '.join(self.callbacks) or 'host callbacks'}"


@dataclasses.dataclass(eq=False)
class Execution:
    """One run of a program, from its dispatch until its tokens are there on every device."""

    program: Program
    # Those of this process, and all of the program's.
    devices: tuple[Any, ...]
    mesh: tuple[Any, ...]
    nested: bool
    # Set when the dispatch has returned or raised.
    returned: threading.Event = dataclasses.field(default_factory=threading.Event)
    tokens: Sequence[Any] = ()
    ordered: bool = True
    # What the dispatching thread was dispatching when it came to this one.
    outer: Execution | None = None
    # Why it failed, where a callback failed in the dispatching thread itself.
    failure: BaseException | None = None

    def done(self) -> bool:
        return self.returned.is_set() and all(token.is_ready() for token in self.tokens)

    def wait(self) -> None:
        """Return when it has ended, well or not."""
        self.returned.wait()
        for token in self.tokens:
            _hooks.settle(token)

    def wait_on(self, devices: Sequence[Any]) -> None:
        """Return when it has ended on `devices`."""
        for device, token in zip(self.devices, self.tokens, strict=False):
            if device in devices:
                _hooks.settle(token)

    def __str__(self) -> str:
        doing = "runs" if self.returned.is_set() else "is being dispatched"
        return f"{self.program} {doing} on {', '.join(map(str, self.devices))}"


class Account:
    """All executions that have been started and have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[Execution, None] = {}
        self._fresh: dict[tuple[Any, ...], Any] = {}
        self._failed: weakref.WeakSet[Program] = weakref.WeakSet()
        # Where programs have run that JAX dispatched without telling.
        self._unseen: set[tuple[Any, ...]] = set()
        # Whether JAX tells of its executions; see `_hooks.install_dispatch_hooks`.
        self.informed = False

    # The methods that JAX's dispatch calls; see `_hooks.DispatchHooks`.

    def begin(self, program: Program | None, devices: Sequence[Any], mesh: Sequence[Any]) -> Execution:
        execution = self.add(program or Program(), devices, mesh)
        execution.outer, running.frame.execution = running.frame.execution, execution
        if len(devices) > 1 and devices[0].platform == "cpu":
            if running.frame.holds_gang:
                self.end(execution, None)
                raise RuntimeError(
                    f"{execution.program}, started from inside a call of a program that runs on several devices "
                    "itself: the CPU runtime runs one such program at a time, so both would wait for ever. Use a "
                    "single device in the callback, or an id_tap that no call of the same program follows."
                )
            _pool.warn_if_small(len(devices))
        return execution

    def add(self, program: Program, devices: Sequence[Any], mesh: Sequence[Any]) -> Execution:
        """Account for what starts now, until its `end`."""
        execution = Execution(program, tuple(devices), tuple(mesh), inside_callback())
        unknown = None
        with self._lock:
            if len(self._live) > MANY:
                self._forget_ended()
                unknown = next((each for each in self._live if not each.ordered and each.returned.is_set()), None)
            self._live[execution] = None
            program.add(execution)
        if unknown is not None and len(self._live) > MANY and not execution.nested:
            # The token of an unordered one cannot be asked, only waited for. So far back it has long ended.
            unknown.wait()
        return execution

    def tokens_in(self, execution: Execution) -> Any:
        devices = execution.devices
        # Work from inside a callback cannot come after the execution that waits for this callback. And only the CPU
        # runtime starts a computation before the previous one of the device has ended.
        if not execution.nested and devices[0].platform == "cpu":
            for other in self._started_on(devices):
                # Those that span several devices are run one at a time.
                if len(devices) == 1 or len(other.devices) == 1:
                    other.wait_on(devices)
        return self._fresh_token(devices)

    def started(self, execution: Execution, tokens: Sequence[Any], ordered: bool) -> None:
        execution.tokens = tuple(tokens)
        execution.ordered = ordered

    def drain(self, device: Any) -> None:
        if not inside_callback():
            queues[device].join()

    def dispatched_natively(self, program: Program, devices: Sequence[Any], optimized_hlo: Callable[[], str]) -> bool:
        if len(devices) > 1 or devices[0].platform != "cpu":
            # The dispatch returns before the callback runs, and an error comes with the results, as it should.
            self._unseen.add(tuple(devices))
            return True
        if program.native is None:
            program.native = is_simple(optimized_hlo(), len(program.callbacks))
        return program.native

    def end(self, execution: Execution, error: BaseException | None) -> None:
        if running.frame.execution is execution:
            running.frame.execution = execution.outer
        execution.returned.set()
        alone = len(execution.devices) == 1 and execution.devices[0].platform == "cpu"
        if alone and not execution.ordered and execution.program.effectful:
            # It has run in this thread, and only waiting makes its token know.
            execution.wait()
        if error is not None:
            # Under None where the handler could not tell its device.
            failures = [execution.program.failures.pop(device, None) for device in (*execution.devices, None)]
            found = execution.failure or next((failure for failure in failures if failure is not None), None)
            error.__cause__ = found or error.__cause__
            # The program remembers its executions, and should not remember this.
            execution.failure = None
        with self._lock:
            if error is not None or execution.done():
                self._live.pop(execution, None)

    # For barriers and eager callbacks.

    def live(self) -> list[Execution]:
        """What has been started and has not ended, oldest first."""
        with self._lock:
            self._forget_ended()
            return list(self._live)

    def settle_unseen(self) -> None:
        """Wait for the programs that JAX dispatched without telling.

        They have no effects, so only an exit needs it: a callback that runs while the interpreter ends aborts it.
        """
        for devices in list(self._unseen):
            _hooks.settle_devices(devices)

    def failed(self, program: Program, device: Any, failure: BaseException) -> None:
        """Keep why a call failed, for the operation that refuses its result."""
        program.failures[device] = failure
        dispatching = running.frame.execution
        if dispatching is not None and dispatching.program is program:
            # Other threads may run the same program meanwhile, and their callbacks fail for other reasons.
            dispatching.failure = failure
        with self._lock:
            self._failed.add(program)

    def forget_failures(self) -> None:
        """Let go of the failures of programs that have ended; an exception keeps its frames alive, and their arrays."""
        with self._lock:
            for program in [program for program in self._failed if program.idle()]:
                program.failures.clear()
                self._failed.discard(program)

    def _forget_ended(self) -> None:
        for execution in [execution for execution in self._live if execution.done()]:
            del self._live[execution]

    def wait_before(self, execution: Execution) -> None:
        """Wait for what a callback outside any program must come after."""
        if not execution.nested:
            for other in self._started_on(execution.devices):
                other.wait_on(execution.devices)

    def _started_on(self, devices: Sequence[Any]) -> list[Execution]:
        """Executions whose dispatch has returned: those that another thread is just dispatching come in any order."""
        if len(self._live) == 1:
            # The one that asks.
            return []
        return [
            execution
            for execution in self.live()
            if execution.returned.is_set()
            and execution.ordered
            and not execution.nested
            and not set(devices).isdisjoint(execution.devices)
        ]

    def _fresh_token(self, devices: tuple[Any, ...]) -> Any:
        token = self._fresh.get(devices)
        if token is None:
            token = self._fresh[devices] = _hooks.fresh_token(devices)
        return token


account = Account()
