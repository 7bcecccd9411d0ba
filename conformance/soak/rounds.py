"""A soak in this process: rounds, each of so many acts of every thread, and between them a look at everything."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from .disturbing import Signals
from .doing import Doer
from .growth import Found, sample
from .programs import Printed
from .record import Record


@dataclass
class Soak:
    """The threads of a soak; the calling thread, which must be the main one, is the first of them."""

    implementation: Any
    devices: Sequence[jax.Device]
    minutes: float = 0.0
    """0 for no limit but that of events."""
    events: int = 0
    """0 for no limit but that of time."""
    seed: int = 0
    threads: int = 4
    warm_up: int = 500_000
    """The events before which no sample counts: pools fill, and each thread of the runtime has its first callback."""
    programs: int = 3
    acts: int = 40
    """The programs that a thread has at a time, and its acts in a round."""
    record: Record = field(default_factory=Record)
    samples: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        common = self.seed, self.record, self.implementation, self.devices
        self._begin, self._over = time.monotonic(), False
        self._end = self._begin + 60 * self.minutes if self.minutes else float("inf")
        # By thread, and without a lock, under which a signal could come.
        self._acts = [0] * self.threads
        self._meeting = threading.Barrier(self.threads)
        self._signals = Signals(*common)
        self._doers = [Doer(f"thread {number}", *common) for number in range(self.threads)]

    def run(self) -> None:
        new = functools.partial(threading.Thread, target=self._thread, daemon=True)
        others = [new(args=(number,), name=f"thread {number}") for number in range(1, self.threads)]
        with contextlib.redirect_stdout(Printed(self.record)):
            for thread in others:
                thread.start()
            self._doers[0].fill_queues()
            with self._signals.on():
                self._thread(0)
            for thread in others:
                thread.join()

    def progress(self) -> tuple[int, ...]:
        """Numbers that change as long as anything goes on."""
        return sum(self._acts), self.record.events, len(self.samples)

    def found(self) -> Found:
        return Found(self.record, self.samples, self.warm_up, time.monotonic() - self._begin)

    def _thread(self, number: int) -> None:
        doer = self._doers[number]
        while not self._over:
            for act in doer.acts(self.programs, self.acts):
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
        enough = 0 < self.events <= self.record.events
        return enough or time.monotonic() >= self._end or self.stopped.is_set() or bool(self.record.anomalies)

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
        if not self.record.anomalies:
            held = sum(doer.held_functions for doer in self._doers)
            self.samples.append((self.record.events, sample(held)))
        self._over = self._leaves()
