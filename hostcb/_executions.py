"""What is running: the account of executions that hold host callbacks, and the order between them (H5, H13).

JAX keeps the tokens that order effects per thread, so that two threads are not ordered, and passes the token of one
execution to the next, so that a failed one makes every later one fail. Here each execution starts with a token that
is ready, and the order between executions comes from waiting for those that were started before.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import jax

from . import _jax, _pool
from ._running import inside_callback, running


class Program:
    """One lowered module, shared by the handlers in it."""

    def __init__(self, callbacks: Sequence[str] = ()) -> None:
        self.callbacks = list(callbacks)
        # Why the last call of each device failed.
        self.failures: dict[Any, BaseException] = {}
        # Whether it runs on several devices at once.
        self.gang = False
        # Whether one of its executions may have been started from inside a callback; `is_nested` knows for certain.
        self.nested = False
        # In the order in which they were started. Replaced rather than changed, for those that read it meanwhile.
        self._executions: tuple[Execution, ...] = ()

    def add(self, execution: Execution) -> None:
        self.gang = len(execution.devices) > 1
        self._executions = (*(each for each in self._executions if not each.done()), execution)
        self.nested |= execution.nested

    def is_nested(self) -> bool:
        """Whether handlers that run now may belong to an execution that a callback waits for."""
        self.nested = any(execution.nested and not execution.done() for execution in self._executions)
        return self.nested

    def device_at(self, position: int) -> Any:
        """The device at a position of the mesh that the program runs on.

        The same program may have been started on several meshes; the runtime runs them in the order of their start.
        """
        executions = self._executions
        if not executions:
            # Without the hooks there is no account; a mesh of all devices is the best guess.
            return jax.devices()[position]
        running = next((execution for execution in executions if not execution.done()), executions[-1])
        return running.mesh[position]

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

    def done(self) -> bool:
        return self.returned.is_set() and all(token.is_ready() for token in self.tokens)

    def wait(self) -> None:
        """Return when it has ended, well or not."""
        self.returned.wait()
        for token in self.tokens:
            _jax.settle(token)

    def wait_on(self, devices: Sequence[Any]) -> None:
        """Return when it has ended on `devices`."""
        for device, token in zip(self.devices, self.tokens, strict=False):
            if device in devices:
                _jax.settle(token)

    def __str__(self) -> str:
        doing = "runs" if self.returned.is_set() else "is being dispatched"
        return f"{self.program} {doing} on {', '.join(map(str, self.devices))}"


class Account:
    """All executions that have been started and have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[Execution, None] = {}
        self._fresh: dict[tuple[Any, ...], Any] = {}
        # Whether JAX tells of its executions; see `_jax.install_dispatch_hooks`.
        self.informed = False

    # The methods that JAX's dispatch calls; see `_jax.DispatchHooks`.

    def begin(self, program: Program | None, devices: Sequence[Any], mesh: Sequence[Any]) -> Execution:
        execution = self.add(program or Program(), devices, mesh)
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
        with self._lock:
            self._live[execution] = None
            program.add(execution)
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

    def started(self, execution: Execution, tokens: Sequence[Any]) -> None:
        execution.tokens = tuple(tokens)

    def end(self, execution: Execution, error: BaseException | None) -> None:
        execution.returned.set()
        if error is not None:
            failures = [execution.program.failures.pop(device, None) for device in execution.devices]
            error.__cause__ = next((failure for failure in failures if failure is not None), error.__cause__)
        with self._lock:
            if error is not None or execution.done():
                self._live.pop(execution, None)

    # For barriers and eager callbacks.

    def live(self) -> list[Execution]:
        """What has been started and has not ended, oldest first."""
        with self._lock:
            for execution in list(self._live):
                if execution.done():
                    del self._live[execution]
            return list(self._live)

    def wait_before(self, execution: Execution) -> None:
        """Wait for what a callback outside any program must come after."""
        if not execution.nested:
            for other in self._started_on(execution.devices):
                other.wait_on(execution.devices)

    def _started_on(self, devices: Sequence[Any]) -> list[Execution]:
        """Executions whose dispatch has returned: those that another thread is just dispatching come in any order."""
        if not self._live:
            return []
        return [
            execution
            for execution in self.live()
            if execution.returned.is_set() and not execution.nested and not set(devices).isdisjoint(execution.devices)
        ]

    def _fresh_token(self, devices: tuple[Any, ...]) -> Any:
        token = self._fresh.get(devices)
        if token is None:
            token = self._fresh[devices] = _jax.fresh_token(devices)
        return token


account = Account()
