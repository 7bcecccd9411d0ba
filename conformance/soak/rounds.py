"""A soak in this process: rounds, each of so many acts of every thread, and between them a look at everything."""

from __future__ import annotations

import contextlib
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from .compiling import CompilingThreads
from .disturbing import Signals, computing
from .doing import Doer
from .options import Options
from .programs import Printed
from .record import Record
from .resources import sample


@dataclass
class Soak:
    """The threads of a soak; the calling thread, which must be the main one, is the first of them."""

    options: Options
    implementation: Any
    devices: Sequence[jax.Device]
    record: Record = field(default_factory=Record)
    samples: list[dict[str, Any]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set for an early end."""

    def __post_init__(self) -> None:
        options, common = self.options, (self.record, self.implementation, self.devices)
        self._end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        self._over = False
        # By thread, and without a lock, under which a signal could come.
        self._acts = [0] * options.threads
        self._meeting = threading.Barrier(options.threads)
        self._compiling = CompilingThreads()
        self._signals = Signals(options.seed, *common)
        self._doers = [Doer(f"thread {number}", options.seed, *common) for number in range(options.threads)]

    def run(self) -> None:
        others = [
            threading.Thread(target=self._thread, args=(number,), name=f"thread {number}", daemon=True)
            for number in range(1, self.options.threads)
        ]
        with computing(self.options.seed), contextlib.redirect_stdout(Printed(self.record)):
            for thread in others:
                thread.start()
            self._doers[0].fill_queues()
            with self._signals.on():
                self._thread(0)
            for thread in others:
                thread.join()

    def progress(self) -> dict[str, Any]:
        """How far it is, for JSON."""
        record = self.record
        return {
            "jax": jax.__version__,
            "python": platform.python_version(),
            "acts": sum(self._acts),
            "events": record.events,
            "runs": record.runs,
            "rounds": len(self.samples),
            "judged": record.judged,
            "found": len(record.anomalies),
            "waiting": record.waiting(),
        }

    def report(self) -> dict[str, Any]:
        """What was found, for JSON."""
        return {
            **self.progress(),
            "by_kind": dict(self.record.by_kind),
            "failures": self.record.failures,
            "signals": self._signals.count,
            "signal_taps": self._signals.taps,
            "compiling_threads": self._compiling.count,
            "bytes_for_each": self._compiling.each,
            "samples": self.samples,
            "anomalies": [{"kind": each.kind, "witness": each.witness} for each in self.record.anomalies],
        }

    def _thread(self, number: int) -> None:
        doer = self._doers[number]
        while not self._over:
            for act in doer.acts(self.options.programs, self.options.acts):
                if self._leaves():
                    break
                self._guarded(act)
                self._acts[number] += 1
            self._guarded(doer.end_round)
            # Nothing runs between these two but what the first thread does.
            self._meeting.wait()
            if number == 0:
                self._guarded(self._look)
            self._meeting.wait()

    def _leaves(self) -> bool:
        enough = 0 < self.options.events <= self.record.events
        return enough or time.monotonic() >= self._end or self.stopped.is_set() or self.record.failed.is_set()

    def _guarded(self, act: Callable[[], Any]) -> None:
        """What raises here is an error that nobody planned."""
        try:
            act()
        except Exception:
            self.record.note("error", f"{threading.current_thread().name}: {traceback.format_exc()[-3000:]}")

    def _look(self) -> None:
        """Nothing runs: all must be here, and the process must hold no more than before."""
        with self._signals.off():
            self._doers[0].barrier()
            self.record.judge()
        # Else what JAX keeps of programs would be most of what grows.
        jax.clear_caches()
        if not self.record.failed.is_set():
            held = sum(doer.held_functions for doer in self._doers)
            values = sample(self.options.library, held, self._compiling.kept)
            self.samples.append({"events": self.record.events, "values": values})
        self._over = self._leaves()
        if self.record.failed.is_set():
            print(f"soak: {self.record.anomalies[0]}", file=sys.stderr)
