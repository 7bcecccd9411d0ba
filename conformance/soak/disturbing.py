"""Signals that interrupt the main thread of a soak, which then taps or computes in Python."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import jax
import numpy as np
from jax.extend.core import get_opaque_trace_state

from .programs import Program
from .record import Record
from .specs import Form, Layout, ProgramSpec

SIGNAL_SECONDS = 0.03
HANDLERS_TAP = sys.version_info >= (3, 12)
"""On Python 3.11 jaxlib can corrupt the heap if a handler runs JAX while jaxlib records a traceback, with or without
hostcb: docs/contract.md, 'Threads'."""


class Signals:
    """A timer whose handler interrupts the main thread anywhere: it taps, or computes in Python for some time."""

    def __init__(self, seed: int, record: Record, implementation: Any, devices: Sequence[jax.Device]) -> None:
        self._record = record
        self._program = Program(
            ProgramSpec(Layout.EAGER, Form.STRAIGHT, ("id_tap",), 1), record, implementation, devices
        )
        self._random = Random(f"{seed}-signals")
        self._top_level = get_opaque_trace_state()
        self._busy = False
        """Whether a handler runs, under which another signal can come, or no handler may do anything."""
        self.count = 0

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        # JAX imports modules when it first needs them, and a handler could find one half imported.
        jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
        self._tap()
        signal.signal(signal.SIGALRM, self._handle)
        # A system call that a signal interrupts goes on, as with Python's own.
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, SIGNAL_SECONDS, SIGNAL_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """No handler does anything in this block.

        Without the timer it would: its last signal may still be on its way, since the system can give it to a thread
        that a busy machine keeps from running.
        """
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _handle(self, *_: object) -> None:
        if self._busy:
            return
        with self.off():
            self.count += 1
            try:
                if HANDLERS_TAP and self._random.random() < 0.3 and self._outside_of_traces():
                    self._tap()
                else:
                    for number in range(self._random.randrange(100_000)):
                        np.int32(number)
            except Exception:
                # What the signal has interrupted could swallow it: then only the tap would be missing.
                witness = f"the handler of signal {self.count}: {traceback.format_exc()[-6000:]}"
                self._record.note("error", witness)

    def _outside_of_traces(self) -> bool:
        """Whether a handler can run JAX now.

        What it runs in the middle of a trace would become a part of the traced program, and run with it each time. In
        the middle of a bind JAX has no trace at all. Both are so without hostcb.
        """
        try:
            return self._top_level == get_opaque_trace_state()
        except (AssertionError, AttributeError):
            return False

    def _tap(self) -> None:
        # In a callback it would run at once, and not after what is queued: each is for itself.
        run = self._record.begin(f"signal {self.count}", self._program.shape(0), self._program.devices, inside=True)
        # JAX refuses an operation that a handler runs while it prepares the same one: "Recursively calling jit".
        self._program.tap(run)
        run.returned = time.monotonic_ns()
