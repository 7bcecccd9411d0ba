"""What victims do: `python -m conformance.victim_programs PROGRAM IMPLEMENTATION LAYOUT DEVICES ARGUMENT...`.

They write on their standard output, line by line, where they are and what they have found out; the side that
started them judges it.
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
from typing import Any

import jax
import numpy as np

from conformance.bench import Bench
from conformance.external_callbacks import ALL_CALLBACKS
from conformance.implementations import load
from conformance.runtime_targets import raw_program
from conformance.verdicts import Stage

EXIT_STATUS = 7
PATIENCE = 10.0
STILL_RUNNING_SECONDS = 0.3
"""How long a callback goes on after the main thread has come to its end."""

_BY_NAME = {callback.name: callback for callback in ALL_CALLBACKS}


def at(stage: Stage) -> None:
    _write(stage=stage.value)


def say(what: Any) -> None:
    _write(said=what)


def _write(**line: Any) -> None:
    # One write per line: callbacks of several devices write at the same time.
    os.write(1, (json.dumps(line) + "\n").encode())


def os_exit(bench: Bench, callback_name: str) -> None:
    """A callback ends the process without asking anybody."""

    def host(operand: Any) -> Any:
        at(Stage.CALLBACK)
        os._exit(EXIT_STATUS)

    compiled = bench.applying(_BY_NAME[callback_name], host)
    at(Stage.DISPATCH)
    result = compiled(bench.operand)
    at(Stage.RESULT)
    np.asarray(result)
    at(Stage.BARRIER)
    bench.implementation.barrier()


def running_at_exit(bench: Bench, callback_name: str) -> None:
    """The interpreter ends while callbacks of the last program run; earlier ones have warmed up its dispatch."""
    last = threading.Event()
    entered = threading.Semaphore(0)
    main = threading.main_thread()
    # Registered before anything of the implementation's, hence run after it.
    atexit.register(at, Stage.EXIT)

    def host(operand: Any) -> Any:
        if last.is_set():
            entered.release()
            if threading.current_thread() is not main:
                _outlive(main)
            say("ended")
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(_BY_NAME[callback_name], host)
    at(Stage.RESULT)
    for _ in range(3):
        np.asarray(compiled(bench.operand))
    last.set()
    at(Stage.DISPATCH)
    # Dropping the result is part of it.
    compiled(bench.operand)
    say("dispatched")
    at(Stage.CALLBACK)
    entered.acquire(timeout=PATIENCE)
    at(Stage.EXIT)


def _outlive(thread: threading.Thread) -> None:
    while thread.is_alive():
        time.sleep(0.01)
    time.sleep(STILL_RUNNING_SECONDS)


def shared_executables(bench: Bench, callback_name: str, mark: str) -> None:
    """A program whose text is the same in every process, and whose function is not."""

    def host(operand: Any) -> Any:
        say(mark)
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(_BY_NAME[callback_name], host)
    at(Stage.RESULT)
    np.asarray(compiled(bench.operand))
    at(Stage.BARRIER)
    bench.implementation.barrier()


def signals(bench: Bench, callback_name: str) -> None:
    """Signals come while a callback runs: one that is handled, one that interrupts, and then none."""
    handled = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: handled.set())
    to_send: list[signal.Signals] = [signal.SIGUSR1]

    def host(operand: Any) -> Any:
        for number in to_send:
            os.kill(os.getpid(), number)
        return np.asarray(operand) + np.float32(1)

    compiled = bench.applying(_BY_NAME[callback_name], host)
    say(np.asarray(compiled(bench.operand)).tolist())
    bench.implementation.barrier()
    say(_happens(handled.is_set))

    to_send[:] = [signal.SIGINT]
    interrupted = ""
    try:
        np.asarray(compiled(bench.operand))
        bench.implementation.barrier()
        # Where the main thread runs no callback it is interrupted wherever it is, a moment later perhaps.
        threading.Event().wait(PATIENCE)
    except BaseException as error:
        interrupted = f"{type(error).__name__}: {error}"
    say(interrupted)

    to_send.clear()
    with contextlib.suppress(Exception):
        # This one may still report the interruption.
        bench.implementation.barrier()
    at(Stage.RESULT)
    say(np.asarray(compiled(bench.operand)).tolist())
    bench.implementation.barrier()


def _happens(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def flags(bench: Bench) -> None:
    """The environment has set flags of host_callback: what becomes of taps."""
    threads: list[bool] = []

    def where(operand: Any, transforms: Any) -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    bench.implementation.tap(where, np.float32(1))
    bench.implementation.barrier()
    say(threads)

    transforms_seen: list[list[str]] = []
    tap = bench.implementation.tap
    jax.grad(lambda x: tap(lambda _, transforms: transforms_seen.append([t[0] for t in transforms]), x) * 2.0)(3.0)
    bench.implementation.barrier()
    say(transforms_seen)


def raw(bench: Bench, target: str, kind: str) -> None:
    """A result goes to the runtime's own target for callbacks without anybody's check."""
    program, operand = raw_program(target, kind)
    at(Stage.DISPATCH)
    try:
        result = program(operand)
        at(Stage.RESULT)
        values = np.asarray(result)
    except jax.errors.JaxRuntimeError as error:
        say(["error", str(error)])
    else:
        say(["value", [values.dtype.name, values.shape, values.ravel()[:8].tolist()]])
    # A heap that has been written over is found out about when it is used.
    arrays = [jax.device_put(np.zeros(size)) for size in range(1, 200)]
    del arrays


PROGRAMS: dict[str, Callable[..., None]] = {
    "os_exit": os_exit,
    "running_at_exit": running_at_exit,
    "shared_executables": shared_executables,
    "signals": signals,
    "flags": flags,
    "raw": raw,
}


def main() -> None:
    program, implementation, layout, devices, *arguments = sys.argv[1:]
    faulthandler.enable()
    bench = Bench(load(implementation), layout, jax.devices()[: int(devices)])
    PROGRAMS[program](bench, *arguments)


if __name__ == "__main__":
    main()
