"""Programs of child processes: `python -m conformance.cases.harness.child_programs PROGRAM IMPLEMENTATION LAYOUT ...`.

They write lines to their standard output: that they have begun, their stage, and their findings. The process that
started them judges these. IMPLEMENTATION is the path of the implementation.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from ...implementations import load
from ...oracle.verdicts import Stage
from ...spec.external_callbacks import callback_named
from .case import Case
from .child_processes import MARK
from .extensions import extend_as_started
from .hosts import add_one
from .runtime_targets import raw_program

EXIT_STATUS = 7
PATIENCE = 10.0
STILL_RUNNING_SECONDS = 0.3
"""The time for which a callback goes on after the main thread has ended."""


def at(stage: Stage) -> None:
    _write(stage=stage.value)


def say(what: Any) -> None:
    _write(said=what)


_writing = threading.RLock()


def _write(**line: Any) -> None:
    # Callbacks of several devices write at the same time. A report begins a line, whatever was printed before.
    with _writing:
        os.write(1, f"\n{MARK}{json.dumps(line)}\n".encode())


Program: TypeAlias = Callable[..., None]

_PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Let child processes run this under its own name."""
    _PROGRAMS[function.__name__] = function
    return function


@program
def os_exit(case: Case) -> None:
    """A callback ends the process by `os._exit`."""

    def host(operand: Any) -> Any:
        # No other thread writes between the last report and the end.
        with _writing:
            at(Stage.CALLBACK)
            os._exit(EXIT_STATUS)

    compiled = case.program(host)
    at(Stage.DISPATCH)
    result = compiled(case.operand)
    at(Stage.RESULT)
    np.asarray(result)
    at(Stage.BARRIER)
    case.implementation.barrier()


@program
def running_at_exit(case: Case) -> None:
    """The interpreter ends while callbacks of the last program run; earlier ones have warmed up its dispatch."""
    last = threading.Event()
    entered = threading.Semaphore(0)
    main = threading.main_thread()
    # Registered before the implementation's exit handlers, and therefore run after them.
    atexit.register(at, Stage.EXIT)

    def host(operand: Any) -> Any:
        if last.is_set():
            entered.release()
            if threading.current_thread() is not main:
                _outlive(main)
            say("ended")
        return add_one(operand)

    compiled = case.program(host)
    at(Stage.RESULT)
    for _ in range(3):
        np.asarray(compiled(case.operand))
    last.set()
    at(Stage.DISPATCH)
    # The program must not keep the result: this is part of the case.
    compiled(case.operand)
    say("dispatched")
    at(Stage.CALLBACK)
    entered.acquire(timeout=PATIENCE)
    at(Stage.EXIT)


def _outlive(thread: threading.Thread) -> None:
    while thread.is_alive():
        time.sleep(0.01)
    time.sleep(STILL_RUNNING_SECONDS)


@program
def shared_executables(case: Case, callback_names: str, mark: str) -> None:
    """Programs with the same text in every process, and with different functions: two of each kind of callback."""
    callbacks = [callback_named(name) for name in callback_names.split()]
    if mark != "first":
        # Objects that are numbered in the order of their creation get other numbers here.
        for number in range(3):
            earlier = case.compile(lambda x: case.apply(add_one, x, by=callbacks[0]))
            np.asarray(earlier(case.operand + np.float32(number)))
        case.implementation.barrier()

    for callback in callbacks:
        # The two programs of a kind are equal but for their functions.
        for name in ("one", "another"):

            def host(operand: Any, what: str = f"{name} {callback.name} of the {mark} process") -> Any:
                say(what)
                return add_one(operand)

            compiled = case.compile(lambda x, by=callback, host=host: case.apply(host, x, by=by))
            at(Stage.RESULT)
            np.asarray(compiled(case.operand))
            at(Stage.BARRIER)
            case.implementation.barrier()


@program
def signals(case: Case) -> None:
    """Signals come while a callback runs: one that is handled, one that interrupts, and then none."""
    handled = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    # The background jobs of a shell ignore SIGINT, and processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    to_send: list[signal.Signals] = [signal.SIGUSR1]

    def host(operand: Any) -> Any:
        for number in to_send:
            os.kill(os.getpid(), number)
        return add_one(operand)

    compiled = case.program(host)
    say(np.asarray(compiled(case.operand)).tolist())
    case.implementation.barrier()
    say(_happens(handled.is_set))

    to_send[:] = [signal.SIGINT]
    interrupted = ""
    try:
        np.asarray(compiled(case.operand))
        case.implementation.barrier()
        # If the main thread runs no callback, the interrupt reaches it elsewhere, perhaps a moment later.
        threading.Event().wait(PATIENCE)
    except BaseException as error:
        interrupted = f"{type(error).__name__}: {error}"
    say(interrupted)

    to_send.clear()
    with contextlib.suppress(Exception):
        # This barrier may still report the interrupt.
        case.implementation.barrier()
    at(Stage.RESULT)
    say(np.asarray(compiled(case.operand)).tolist())
    case.implementation.barrier()


def _happens(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@program
def raw(case: Case, kind: str) -> None:
    """A result goes to the runtime's own target for callbacks, unchecked."""
    compiled, operand = raw_program(case.callback_name, kind)
    at(Stage.DISPATCH)
    try:
        result = compiled(operand)
        at(Stage.RESULT)
        values = np.asarray(result)
    except jax.errors.JaxRuntimeError as error:
        say(["error", str(error)])
    else:
        say(["value", [values.dtype.name, values.shape, values.ravel()[:8].tolist()]])
    # A corrupted heap shows only when the process uses it.
    arrays = [jax.device_put(np.zeros(size)) for size in range(1, 200)]
    del arrays


def main() -> None:
    name, path, layout, count, callback, *arguments = sys.argv[1:]
    faulthandler.enable()
    extend_as_started()
    run = _PROGRAMS[name]
    # Load it before the devices exist: an implementation may change settings for them.
    implementation = load(path)
    devices = jax.devices()
    if len(devices) < int(count):
        raise RuntimeError(f"the cell has {count} devices, this process {len(devices)}")
    case = Case(implementation, layout, devices[: int(count)], callback)
    # A failure before this line is not caused by the implementation's callbacks.
    _write(began=name)
    run(case, *arguments)


if __name__ == "__main__":
    main()
