"""The memory that JAX keeps for each thread that has compiled a program, for as long as the thread lives.

In a soak callbacks run programs, so the threads of the runtime compile one after another, for hours. With JAX 0.12 each
of them keeps 1.4 MB, with or without callbacks. That is not growth of what is under test.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from .c_library import in_use

COMPILED = "/jax/core/compile/backend_compile_duration"
"""The event of `jax.monitoring` that the thread which compiles records."""

MEASURED = 4
"""Threads that compile, to see what one of them costs."""


class CompilingThreads:
    """The threads that have compiled, and the bytes that JAX keeps for each of them in this process.

    It is made while nothing else runs: its own threads then compile a program of JAX alone. If JAX does not report
    their compilations any more, or the C library does not say what is in use, no bytes are set apart.
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()
        jax.monitoring.register_event_duration_secs_listener(self._note)
        # The first threads of a process bring costs of their own.
        self.each = min(self._measured() for _ in range(2))

    @property
    def count(self) -> int:
        """How many of them live: JAX keeps nothing for a thread that has ended."""
        tasks = Path("/proc/self/task")
        return len(self._threads & {int(task.name) for task in tasks.iterdir()}) if tasks.exists() else 0

    @property
    def kept(self) -> float:
        """The bytes for all of them."""
        return self.each * self.count

    def _note(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED:
            self._threads.add(threading.get_native_id())

    def _measured(self) -> float:
        _compile(MEASURED)
        own = set(self._threads)
        before = _bytes()
        together = threading.Barrier(MEASURED)

        def compile_one(number: int) -> None:
            # Else one thread could be quick enough to take the program of another one.
            together.wait()
            _compile(number)

        with ThreadPoolExecutor(MEASURED) as threads:
            list(threads.map(compile_one, range(MEASURED)))
            # The threads wait for more, and so have their memory still.
            after = _bytes()
            reported = len(self._threads - own) == MEASURED
        # They have ended now, and their memory is free.
        self._threads = own
        return max(0.0, (after - before) / MEASURED) if reported else 0.0


def _compile(number: int) -> None:
    jax.jit(lambda x: jax.numpy.sin(x) + number)(1.0).block_until_ready()


def _bytes() -> int:
    """What is in use without the caches of programs."""
    jax.clear_caches()
    gc.collect()
    return in_use() or 0
