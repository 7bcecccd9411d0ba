"""What a shorter switch interval costs threads that compute in Python: `python -m benchmarks.interval`.

hostcb sets the interval to 0.1 ms for a second after it has seen a callback wait for the interpreter lock. Threads
share a fixed work, once with Python's usual interval of 5 ms and once with a shorter one. The figure is the time until
all have ended.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from benchmarks import running
from benchmarks.busy import USUAL_INTERVAL
from benchmarks.rows import Row, compared

COUNTS = (1, 2, 4, 8)
# The default of hostcb_switch_interval, and a tenth of it for comparison.
INTERVALS = {1e-4: 1.02, 1e-5: None}
WORK = 4_000_000


def counting(work: int) -> None:
    """Compute in Python alone, and never let go of the interpreter lock."""
    while work:
        work -= 1


def shuffling(work: int) -> None:
    """Small operations of NumPy, as a loader of data has them."""
    rows = np.arange(4096, dtype=np.float32).reshape(64, 64)
    for number in range(work // 400):
        rows = (np.roll(rows, number % 7, axis=0) + rows.T) * np.float32(0.5)


KINDS: dict[str, Callable[[int], None]] = {"counting in Python": counting, "small NumPy operations": shuffling}


def took(compute: Callable[[int], None], count: int, work: int, interval: float) -> float:
    """Return the seconds that so many threads take for their shares of the work."""
    before = sys.getswitchinterval()
    threads = [threading.Thread(target=compute, args=(work // count,)) for _ in range(count)]
    sys.setswitchinterval(interval)
    try:
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin
    finally:
        sys.setswitchinterval(before)


def run(rounds: int = 9, work: int = WORK) -> list[Row]:
    rows = []
    for kind, compute in KINDS.items():
        for count in COUNTS:
            times: dict[float, list[float]] = {each: [] for each in (USUAL_INTERVAL, *INTERVALS)}
            for number in range(rounds):
                for interval in times if number % 2 == 0 else reversed(times):
                    times[interval].append(took(compute, count, work, interval))
            for interval, target in INTERVALS.items():
                what = f"{kind}, {count} thread{'s' * (count > 1)}, {interval * 1e3:g} ms"
                usual = f"{USUAL_INTERVAL * 1e3:g} ms"
                rows.append(compared("interval", what, usual, times[interval], times[USUAL_INTERVAL], target, "s"))
    return rows


if __name__ == "__main__":
    sys.exit(running.main({"interval": sys.modules[__name__]}, None, ["interval"]))
