"""How long a callback holds the device up while a Python thread computes: `python -m benchmarks.busy`.

A real program has Python threads, and a callback that finds the interpreter lock taken waits for a switch interval. The
device pauses for 200 microseconds after each callback, as if it computed. The rows show the time between two pauses. An
operation in C takes it, which the benchmark compiles; without a C compiler it fails. JAX's own callbacks are measured
with Python's usual switch interval, which they have in a process without hostcb.
"""

from __future__ import annotations

import ctypes
import functools
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import running
from benchmarks.rows import Row, compared
from benchmarks.subjects import SUBJECTS, Subject, barrier

STEPS = 200
PAUSE = 200_000
TARGET = "hostcb_benchmark_pause"
# The share of JAX's time that ours may take: the median, and the 99th percentile.
COMPARISONS: tuple[tuple[str, str, dict[str, float | None]], ...] = (
    ("id_tap", "jax debug.callback", {"median": 0.005, "p99": 0.01}),
    ("call", "jax io_callback(ordered=True)", {"median": 0.05, "p99": None}),
    ("id_tap of 256 KiB", "jax debug.callback of 256 KiB", {"median": 0.02, "p99": None}),
)
# The device makes such a value of its number in each step, which is in the time of both.
OF_LARGE = " of 256 KiB"
LARGE = (256, 256)
USUAL_INTERVAL = 0.005
# In seconds: hostcb holds a shortened interval for one, and looks for a minute whether somebody has put it back.
RESTORED_WITHIN = 120.0
_COMPILER = "cc -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared"


@functools.cache
def _library() -> ctypes.PyDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pause.so")
        source = Path(__file__).with_name("pause.c")
        command = [*shlex.split(_COMPILER), f"-I{jax.ffi.include_dir()}", str(source), "-o", str(path)]
        subprocess.run(command, check=True)  # noqa: S603
        library = ctypes.PyDLL(str(path))
    library.begin.argtypes = [ctypes.c_uint64]
    library.begin.restype = None
    library.found.argtypes = [ctypes.POINTER(ctypes.c_int64)]
    library.found.restype = ctypes.POINTER(ctypes.c_uint64)
    jax.devices()
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.pause_device), platform="cpu")
    return library


def _paused(step: Subject, steps: int) -> Callable[[], Any]:
    pause = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((), jnp.float32), has_side_effect=True)
    program = jax.jit(lambda start: jax.lax.fori_loop(0, steps, lambda _, carry: pause(step(carry)), start))
    return functools.partial(program, jnp.float32(1))


def _subject(name: str) -> Subject:
    step = SUBJECTS[name.removesuffix(OF_LARGE)]
    return (lambda number: step(jnp.full(LARGE, number))[0, 0]) if name.endswith(OF_LARGE) else step


def _held_up(program: Callable[[], Any], pause: int) -> list[float]:
    """Run a program, and return the microseconds between its pauses."""
    library, number = _library(), ctypes.c_int64()
    library.begin(pause)
    jax.block_until_ready(program())
    barrier()
    gaps = library.found(ctypes.byref(number))
    return [gaps[place] / 1e3 for place in range(number.value)]


@contextmanager
def computing(wanted: bool) -> Iterator[None]:
    """While the block runs, another thread computes in Python, if `wanted`."""
    over = threading.Event()

    def compute() -> None:
        number = 0
        while not over.is_set():
            for _ in range(1000):
                number += 1

    thread = threading.Thread(target=compute)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if wanted:
            thread.join()


@contextmanager
def interval_of(name: str) -> Iterator[None]:
    """Measure JAX's own callbacks with Python's usual switch interval, which hostcb restores after a while."""
    end = time.monotonic() + RESTORED_WITHIN
    while name.startswith("jax ") and sys.getswitchinterval() < USUAL_INTERVAL / 2:
        if time.monotonic() > end:
            raise RuntimeError(f"the switch interval is {sys.getswitchinterval()} s, and nobody restores it")
        time.sleep(0.05)
    yield


def run(rounds: int = 5, steps: int = STEPS) -> list[Row]:
    _library()
    names = [name for ours, theirs, _ in COMPARISONS for name in (ours, theirs)]
    programs = {name: _paused(_subject(name), steps) for name in names}
    for program in programs.values():
        _held_up(program, 0)
    rows: list[Row] = []
    for busy in (True, False):
        figures: dict[str, dict[str, list[float]]] = {name: {"median": [], "p99": []} for name in programs}
        with computing(busy):
            for _ in range(rounds):
                for name, program in programs.items():
                    with interval_of(name):
                        gaps = _held_up(program, PAUSE)
                    figures[name]["median"].append(statistics.median(gaps))
                    figures[name]["p99"].append(statistics.quantiles(gaps, n=100)[-1])
        where = "a computing thread" if busy else "idle"
        for ours, theirs, targets in COMPARISONS:
            for what, most in targets.items():
                label = f"{ours}, {where}, {what}"
                target = most if busy else None
                rows.append(compared("busy", label, theirs, figures[ours][what], figures[theirs][what], target))
    return rows


if __name__ == "__main__":
    sys.exit(running.main({"busy": sys.modules[__name__]}, None, ["busy"]))
