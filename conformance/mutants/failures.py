"""Failures that are lost, late, reported twice or without text, and failures that affect later programs."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from .host_functions import around, instead, reporting, surround
from .mutant import Library, Names, mutant


@mutant(
    "id_tap/case.tap_raises.jit/cpu-8dev debug_callback/case.raises_unseen.jit/cpu-8dev", "swallowed error at barrier"
)
@around("id_tap", "debug.callback")
def swallowed_by_tap(function: Any, *arguments: Any, **options: Any) -> None:
    """Nobody hears of a tap that raises."""
    try:
        function(*arguments, **options)
    except Exception as error:
        del error


@mutant(
    "call/case.raises.jit/cpu-8dev pure_callback/case.raises.jit/* io_callback*/case.raises.jit/*",
    "swallowed error at result",
)
@mutant(
    "call/case.raises.pjit/cpu-8dev pure_callback/case.raises.pmap/cpu-8dev "
    "io_callback/case.raises.shard_map/cpu-8dev io_callback_ordered/case.raises.pjit/cpu-8dev "
    "buffer_callback/case.raises.pmap/cpu-8dev dlpack_callback/case.raises.shard_map/cpu-8dev",
    "swallowed error at result",
    name="swallowed_on_devices",
    fault="A callback that raises returns zeros in a program on several devices.",
)
def swallowed_by_call(library: Library) -> Names:
    """A call that raises returns zeros."""

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


@mutant("pure_callback/case.raises.jit/cpu-8dev", "swallowed error at result")
@around("pure_callback", having=threading.Event)
def swallowed_when_native(raised: Any, function: Any, *operands: Any) -> Any:
    """A pure callback that raises returns zeros from the second time on, when JAX dispatches it in C++."""
    try:
        return function(*operands)
    except Exception:
        if not raised.is_set():
            raised.set()
            raise
        return np.zeros_like(operands[0])


@mutant("call/case.raises.jit/cpu-8dev io_callback/case.raises.jit/cpu-8dev", "swallowed error at result")
def postponed(library: Library, raised_now: bool = False) -> Names:
    """An exception is raised by the computation after the one that failed."""
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

    return surround(library, run, "call", "io_callback")


@mutant("call/case.raises.jit/cpu-8dev", "stale error at dispatch")
def repeated(library: Library) -> Names:
    """An exception is raised again by the computation after the one that failed."""
    return postponed(library, raised_now=True)


@mutant("id_tap/case.tap_raises.jit/cpu-8dev call/case.raises.jit/cpu-8dev", "stale error at barrier")
def never_forgotten(library: Library) -> Names:
    """The barrier reports a failure for ever."""
    failures: list[Exception] = []

    def report(failed: Any) -> None:
        if failed:
            failures.append(failed)
        if failures:
            raise failures[-1]

    return reporting(library, report)


@mutant("call/case.raises.jit/cpu-8dev call/case.error_mark.pmap/cpu-8dev", "stale error at barrier")
def reported_late(library: Library) -> Names:
    """The barrier reports a failure again after two quiet ones."""
    failures: list[Exception] = []
    quiet = 0

    def report(failed: Any) -> None:
        nonlocal quiet
        if failed:
            failures[:], quiet = [failed], 0
            raise failed
        quiet += 1
        if failures and quiet == 2:
            raise failures.pop()

    return reporting(library, report)


@mutant("id_tap/case.tap_raises.* call/case.raises.jit/cpu-8dev", "swallowed error at barrier")
def barrier_says_nothing(library: Library) -> Names:
    """The barrier waits, and reports no failure."""
    return reporting(library, lambda failed: None)


@mutant(
    "id_tap/case.tap_raises.jit/cpu-8dev pure_callback/case.raises.jit/cpu-8dev",
    "poor error at barrier, poor error at dispatch",
)
@around("id_tap", "call", "pure_callback")
def text_lost(function: Any, *arguments: Any, **options: Any) -> Any:
    """Errors do not say what the callback raised."""
    try:
        return function(*arguments, **options)
    except Exception:
        raise RuntimeError("something went wrong") from None


@mutant("pure_callback/case.raises.jit/cpu-8dev", "wrong error at dispatch")
def error_type_changes(library: Library) -> Names:
    """From the second call on, a failure is an exception of another type."""
    # JAX's own callbacks raise another type after the first run of a program.
    return {"pure_callback": jax.pure_callback}


@mutant("id_tap/case.tap_raises.jit/cpu-8dev", "lost at callback")
@around("id_tap", having=threading.Event)
def quits_after_failure(failed: Any, function: Any, *arguments: Any, **options: Any) -> None:
    """After a tap has raised no tap runs."""
    if failed.is_set():
        return
    try:
        function(*arguments, **options)
    except BaseException:
        failed.set()
        raise


@mutant("call/case.starts_others.jit/cpu-8dev", "hang at dispatch")
@around("id_tap", "call", having=threading.Lock)
def not_reentrant(lock: Any, function: Any, *arguments: Any, **options: Any) -> Any:
    """A callback that starts another one waits for itself."""
    with lock:
        return function(*arguments, **options)


@mutant(
    "id_tap/case.is_forgotten.* call/case.is_forgotten.jit/* io_callback/case.is_forgotten.jit/*",
    "leak at exit",
)
@instead("id_tap", "call", "pure_callback", "io_callback", "debug.callback", "buffer_callback", "dlpack_callback")
def kept_alive(callback: Any, function: Any, *arguments: Any, **options: Any) -> Any:
    """Functions are kept though no program uses them any more."""
    _KEPT.append(function)
    return callback(function, *arguments, **options)


_KEPT: list[Any] = []
