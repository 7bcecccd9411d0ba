"""Failures that are lost, come late, come twice or say nothing; and what is left behind."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from conformance.mutants.host_functions import Surrounded, surround
from conformance.mutants.mutant import Library, Mutant, Names, Symptom, at
from conformance.verdicts import Stage


def _swallowed_by_tap(library: Library) -> Names:
    def run(function: Any, *arguments: Any, **options: Any) -> None:
        try:
            function(*arguments, **options)
        except Exception as error:
            del error

    return surround(library, run, "id_tap", "debug.callback")


def _swallowed_by_call(library: Library) -> Names:
    def run(function: Any, operand: Any) -> Any:
        try:
            return function(operand)
        except Exception:
            return np.zeros_like(operand)

    return surround(library, run, "call", "pure_callback", "io_callback")


def _postponed(library: Library) -> Names:
    pending: deque[Exception] = deque()

    def run(function: Any, operand: Any) -> Any:
        if pending:
            raise pending.popleft()
        try:
            return function(operand)
        except Exception as error:
            pending.append(error)
            return np.zeros_like(operand)

    return surround(library, run, "call", "io_callback")


def _repeated(library: Library) -> Names:
    pending: deque[Exception] = deque()

    def run(function: Any, operand: Any) -> Any:
        if pending:
            raise pending.popleft()
        try:
            return function(operand)
        except Exception as error:
            pending.append(error)
            raise

    return surround(library, run, "call")


def _never_forgotten(library: Library) -> Names:
    failures: list[Exception] = []

    def barrier_wait() -> None:
        try:
            library.barrier_wait()
        except library.CallbackException as error:
            failures.append(error)
        if failures:
            raise failures[-1]

    return {"barrier_wait": barrier_wait}


def _barrier_says_nothing(library: Library) -> Names:
    def barrier_wait() -> None:
        try:
            library.barrier_wait()
        except library.CallbackException as error:
            del error

    return {"barrier_wait": barrier_wait}


def _text_lost(library: Library) -> Names:
    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception:
            raise RuntimeError("something went wrong") from None

    return surround(library, run, "id_tap", "call", "pure_callback")


def _error_type_changes(library: Library) -> Names:
    # JAX's own changes it once a program has been run before.
    return {"pure_callback": jax.pure_callback}


def _quits_after_failure(library: Library) -> Names:
    failed = threading.Event()

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        if failed.is_set():
            return
        try:
            function(*arguments, **options)
        except BaseException:
            failed.set()
            raise

    return surround(library, run, "id_tap")


def _not_reentrant(library: Library) -> Names:
    lock = threading.Lock()

    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        with lock:
            return function(*arguments, **options)

    return surround(library, run, "id_tap", "call")


def _kept_alive(library: Library) -> Names:
    kept: list[Any] = []

    def keeping(name: str) -> Any:
        def callback(function: Any, *arguments: Any, **options: Any) -> Any:
            kept.append(function)
            return getattr(library, name)(Surrounded(function, _plainly), *arguments, **options)

        return callback

    return {name: keeping(name) for name in ("id_tap", "call")}


def _plainly(function: Any, *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


_SWALLOWED_BY_BARRIER = at(Stage.BARRIER, "swallowed error")
_SWALLOWED = at(Stage.RESULT, "swallowed error")

MUTANTS = (
    Mutant(
        "swallowed_by_tap",
        "nobody hears of a tap that raises",
        _swallowed_by_tap,
        ("id_tap/fault.raises.jit/cpu-8dev", "debug_callback/fault.raises_unseen.jit/cpu-8dev"),
        _SWALLOWED_BY_BARRIER,
    ),
    Mutant(
        "swallowed_by_call",
        "a call that raises returns zeros",
        _swallowed_by_call,
        ("call/fault.raises.jit/cpu-8dev", "pure_callback/fault.raises.jit/*", "io_callback*/fault.raises.jit/*"),
        _SWALLOWED,
    ),
    Mutant(
        "postponed",
        "an exception is raised by the computation after the one that failed",
        _postponed,
        ("call/fault.raises.jit/cpu-8dev", "io_callback/fault.raises.jit/cpu-8dev"),
        _SWALLOWED,
    ),
    Mutant(
        "repeated",
        "an exception is raised again by the computation after the one that failed",
        _repeated,
        ("call/fault.raises.jit/cpu-8dev",),
        at(Stage.DISPATCH, "stale error"),
    ),
    Mutant(
        "never_forgotten",
        "the barrier reports a failure for ever",
        _never_forgotten,
        ("id_tap/fault.raises.jit/cpu-8dev", "call/fault.raises.jit/cpu-8dev"),
        at(Stage.BARRIER, "stale error"),
    ),
    Mutant(
        "barrier_says_nothing",
        "the barrier waits, and reports no failure",
        _barrier_says_nothing,
        ("id_tap/fault.raises.*", "call/fault.raises.jit/cpu-8dev"),
        _SWALLOWED_BY_BARRIER,
    ),
    Mutant(
        "text_lost",
        "errors do not say what the callback raised",
        _text_lost,
        ("id_tap/fault.raises.jit/cpu-8dev", "pure_callback/fault.raises.jit/cpu-8dev"),
        (*at(Stage.BARRIER, "poor error"), *at(Stage.DISPATCH, "poor error")),
    ),
    Mutant(
        "error_type_changes",
        "from the second call on, a failure is an exception of another type",
        _error_type_changes,
        ("pure_callback/fault.raises.jit/cpu-8dev",),
        at(Stage.DISPATCH, "wrong error"),
    ),
    Mutant(
        "quits_after_failure",
        "after a tap has raised no tap runs",
        _quits_after_failure,
        ("id_tap/fault.raises.jit/cpu-8dev", "id_tap/fault.keyboard_interrupt.jit/cpu-8dev"),
        at(Stage.CALLBACK, "lost"),
    ),
    Mutant(
        "not_reentrant",
        "a callback that starts another one waits for itself",
        _not_reentrant,
        ("call/fault.starts_callbacks.jit/cpu-8dev",),
        (Symptom("hang", Stage.DISPATCH),),
    ),
    Mutant(
        "kept_alive",
        "functions are kept though no program uses them any more",
        _kept_alive,
        ("id_tap/fault.is_forgotten.jit/cpu-8dev", "call/fault.is_forgotten.jit/cpu-8dev"),
        at(Stage.EXIT, "leak"),
    ),
)
