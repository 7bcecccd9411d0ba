"""Failures that are lost, late, reported twice or without text, and failures that affect later programs."""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.verdicts import Stage
from .host_functions import Surrounded, surround
from .mutant import Library, Mutant, Names, Symptom, at


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

    def on_buffers(function: Any, context: Any, out: Any, operand: Any) -> None:
        try:
            function(context, out, operand)
        except Exception:
            np.asarray(out)[...] = 0

    return {
        **surround(library, run, "call", "pure_callback", "io_callback"),
        **surround(library, lambda function, buffer: run(function, np.from_dlpack(buffer)), "dlpack_callback"),
        **surround(library, on_buffers, "buffer_callback"),
    }


def _swallowed_when_native(library: Library) -> Names:
    raised = threading.Event()

    def run(function: Any, *operands: Any) -> Any:
        try:
            return function(*operands)
        except Exception:
            if not raised.is_set():
                raised.set()
                raise
            return np.zeros_like(operands[0])

    return surround(library, run, "pure_callback")


def _raised_later(raised_now: bool, *names: str) -> Callable[[Library], Names]:
    """A library in which a failure is raised by the computation after the one that failed, and `raised_now` or not."""

    def changed(library: Library) -> Names:
        pending: deque[Exception] = deque()

        def run(function: Any, operand: Any) -> Any:
            if pending:
                raise pending.popleft()
            try:
                return function(operand)
            except Exception as error:
                pending.append(error)
                if raised_now:
                    raise
                return np.zeros_like(operand)

        return surround(library, run, *names)

    return changed


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
    # JAX's own callbacks raise another type after the first run of a program.
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
            return operator.attrgetter(name)(library)(Surrounded(function, _plainly), *arguments, **options)

        return callback

    external = ("pure_callback", "io_callback", "debug.callback", "buffer_callback", "dlpack_callback")
    return {name: keeping(name) for name in ("id_tap", "call", *external)}


def _plainly(function: Any, *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


_SWALLOWED_BY_BARRIER = at(Stage.BARRIER, "swallowed error")
_SWALLOWED = at(Stage.RESULT, "swallowed error")

MUTANTS = (
    Mutant(
        "swallowed_by_tap",
        "nobody hears of a tap that raises",
        _swallowed_by_tap,
        ("id_tap/case.tap_raises.jit/cpu-8dev", "debug_callback/case.raises_unseen.jit/cpu-8dev"),
        _SWALLOWED_BY_BARRIER,
    ),
    Mutant(
        "swallowed_by_call",
        "a call that raises returns zeros",
        _swallowed_by_call,
        ("call/case.raises.jit/cpu-8dev", "pure_callback/case.raises.jit/*", "io_callback*/case.raises.jit/*"),
        _SWALLOWED,
    ),
    Mutant(
        "swallowed_on_devices",
        "a callback that raises returns zeros in a program on several devices",
        _swallowed_by_call,
        (
            "call/case.raises.pjit/cpu-8dev",
            "pure_callback/case.raises.pmap/cpu-8dev",
            "io_callback/case.raises.shard_map/cpu-8dev",
            "io_callback_ordered/case.raises.pjit/cpu-8dev",
            "buffer_callback/case.raises.pmap/cpu-8dev",
            "dlpack_callback/case.raises.shard_map/cpu-8dev",
        ),
        _SWALLOWED,
    ),
    Mutant(
        "swallowed_when_native",
        "a pure callback that raises returns zeros from the second time on, when JAX dispatches it in C++",
        _swallowed_when_native,
        ("pure_callback/case.raises.jit/cpu-8dev",),
        _SWALLOWED,
    ),
    Mutant(
        "postponed",
        "an exception is raised by the computation after the one that failed",
        _raised_later(False, "call", "io_callback"),
        ("call/case.raises.jit/cpu-8dev", "io_callback/case.raises.jit/cpu-8dev"),
        _SWALLOWED,
    ),
    Mutant(
        "repeated",
        "an exception is raised again by the computation after the one that failed",
        _raised_later(True, "call"),
        ("call/case.raises.jit/cpu-8dev",),
        at(Stage.DISPATCH, "stale error"),
    ),
    Mutant(
        "never_forgotten",
        "the barrier reports a failure for ever",
        _never_forgotten,
        ("id_tap/case.tap_raises.jit/cpu-8dev", "call/case.raises.jit/cpu-8dev"),
        at(Stage.BARRIER, "stale error"),
    ),
    Mutant(
        "barrier_says_nothing",
        "the barrier waits, and reports no failure",
        _barrier_says_nothing,
        ("id_tap/case.tap_raises.*", "call/case.raises.jit/cpu-8dev"),
        _SWALLOWED_BY_BARRIER,
    ),
    Mutant(
        "text_lost",
        "errors do not say what the callback raised",
        _text_lost,
        ("id_tap/case.tap_raises.jit/cpu-8dev", "pure_callback/case.raises.jit/cpu-8dev"),
        (*at(Stage.BARRIER, "poor error"), *at(Stage.DISPATCH, "poor error")),
    ),
    Mutant(
        "error_type_changes",
        "from the second call on, a failure is an exception of another type",
        _error_type_changes,
        ("pure_callback/case.raises.jit/cpu-8dev",),
        at(Stage.DISPATCH, "wrong error"),
    ),
    Mutant(
        "quits_after_failure",
        "after a tap has raised no tap runs",
        _quits_after_failure,
        ("id_tap/case.tap_raises.jit/cpu-8dev",),
        at(Stage.CALLBACK, "lost"),
    ),
    Mutant(
        "not_reentrant",
        "a callback that starts another one waits for itself",
        _not_reentrant,
        ("call/case.starts_others.jit/cpu-8dev",),
        (Symptom("hang", Stage.DISPATCH),),
    ),
    Mutant(
        "kept_alive",
        "functions are kept though no program uses them any more",
        _kept_alive,
        (
            "id_tap/case.is_forgotten.*",
            "call/case.many_are_forgotten.jit/*",
            "call/case.is_forgotten.jit/*",
            "io_callback/case.is_forgotten.jit/*",
        ),
        at(Stage.EXIT, "leak"),
    ),
)
