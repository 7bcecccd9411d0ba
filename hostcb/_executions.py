"""What is running: the account of executions that hold host callbacks, and the order between them (H5, H13).

JAX keeps the tokens that order effects per thread, and a token of a failed execution makes the next one fail. Here
they are kept per device for the whole process, and no execution ever waits on a token that can fail.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence
from typing import Any

from . import _jax
from ._running import inside_callback

logger = logging.getLogger("hostcb")


class Program:
    """One lowered module, shared by the handlers in it."""

    def __init__(self) -> None:
        self.callbacks: list[str] = []
        # A call can end the execution, and then its tokens carry the error.
        self.fallible = False
        # Executions started from inside a callback.
        self.nested: list[Execution] = []
        self.failure: BaseException | None = None
        self._devices: tuple[Any, ...] = ()

    def runs_on(self, devices: tuple[Any, ...]) -> None:
        self._devices = devices

    def device_at(self, position: int) -> Any:
        """The device at a position of the mesh that the program was last started on."""
        return self._devices[position]

    def is_nested(self) -> bool:
        """Whether handlers that run now may belong to an execution that a callback waits for."""
        self.nested = [execution for execution in self.nested if not execution.done()]
        return bool(self.nested)


@dataclasses.dataclass(eq=False)
class Execution:
    """One run of a program, from its dispatch until its tokens are there on every device."""

    program: Program
    devices: tuple[Any, ...]
    nested: bool
    returned: threading.Event = dataclasses.field(default_factory=threading.Event)
    tokens: Sequence[Any] = ()
    # What this execution comes after, by device.
    superseded: dict[Any, list[Execution]] = dataclasses.field(default_factory=dict)

    def done(self) -> bool:
        return self.returned.is_set() and all(token.is_ready() for token in self.tokens)

    def token_on(self, device: Any) -> Any:
        return self.tokens[self.devices.index(device)]

    def wait(self) -> None:
        """Return when it has ended, well or not."""
        self.returned.wait()
        for token in self.tokens:
            _jax.settle(token)

    def __str__(self) -> str:
        state = "is being dispatched" if not self.returned.is_set() else "runs"
        callbacks = ", ".join(self.program.callbacks) or "host callbacks"
        return f"a program with {callbacks} {state} on {_show(self.devices)}"


def _show(devices: Sequence[Any]) -> str:
    return ", ".join(map(str, devices))


class Account:
    """All executions that have not ended, and for each device those that the next one must come after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[Execution, None] = {}
        self._last: dict[Any, list[Execution]] = {}
        self._fresh: dict[tuple[Any, ...], Any] = {}

    # The methods that JAX's dispatch calls; see `_jax.DispatchHooks`.

    def begin(self, program: Program | None, devices: Sequence[Any]) -> Execution:
        execution = Execution(program or Program(), tuple(devices), inside_callback())
        execution.program.runs_on(execution.devices)
        with self._lock:
            self._live[execution] = None
            if execution.nested:
                execution.program.nested = [*execution.program.nested, execution]
        return execution

    def tokens_in(self, execution: Execution) -> Any:
        devices = execution.devices
        # Work from inside a callback cannot come after the execution that waits for this callback.
        if not execution.nested:
            execution.superseded = self._before(devices)
        if not any(execution.superseded.values()):
            return self._fresh_token(devices)
        shards = []
        for device in devices:
            before = execution.superseded[device]
            # One that cannot fail is waited for on the device. The others are waited for here: JAX has no way to
            # wait for a computation without taking its error too.
            chained = before[-1] if before and not before[-1].program.fallible else None
            for other in before:
                if other is not chained:
                    _jax.settle(other.token_on(device))
            shards.append(chained.token_on(device) if chained else self._fresh_token((device,)))
        return _jax.join_tokens(shards)

    def started(self, execution: Execution, tokens: Sequence[Any]) -> None:
        execution.tokens = tuple(tokens)
        if execution.nested or all(token.is_ready() for token in tokens):
            return
        with self._lock:
            for device in execution.devices:
                before = execution.superseded.get(device, [])
                others = [other for other in self._last.get(device, []) if other not in before]
                self._last[device] = [*others, execution]

    def end(self, execution: Execution, error: BaseException | None) -> None:
        execution.superseded = {}
        execution.returned.set()
        if error is not None:
            failure, execution.program.failure = execution.program.failure, None
            if failure is not None:
                error.__cause__ = failure
        if error is not None or execution.done():
            with self._lock:
                self._live.pop(execution, None)
        elif len(self._live) > 64:
            self._forget_ended()

    # For barriers and eager callbacks.

    def live(self) -> list[Execution]:
        """What has been started and has not ended."""
        self._forget_ended()
        with self._lock:
            return list(self._live)

    def wait_before(self, devices: Sequence[Any]) -> None:
        """Wait for what a callback that starts now on `devices`, outside any program, must come after."""
        if inside_callback():
            return
        for execution in self.live():
            for device, token in zip(execution.devices, execution.tokens, strict=False):
                if device in devices:
                    _jax.settle(token)

    def _forget_ended(self) -> None:
        with self._lock:
            live = list(self._live)
        ended = [execution for execution in live if execution.done()]
        with self._lock:
            for execution in ended:
                self._live.pop(execution, None)

    def _before(self, devices: Sequence[Any]) -> dict[Any, list[Execution]]:
        with self._lock:
            # Only the CPU runtime starts a computation before the device's previous one has ended.
            return {device: self._unfinished(device) if device.platform == "cpu" else [] for device in devices}

    def _unfinished(self, device: Any) -> list[Execution]:
        unfinished = [each for each in self._last.get(device, []) if not each.token_on(device).is_ready()]
        self._last[device] = unfinished
        return list(unfinished)

    def _fresh_token(self, devices: tuple[Any, ...]) -> Any:
        token = self._fresh.get(devices)
        if token is None:
            token = self._fresh[devices] = _jax.fresh_token(devices)
        return token


account = Account()
