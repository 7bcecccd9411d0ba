"""The memory of taps with a slow function: `python -m benchmarks.memory`.

A device's queue may hold as many bytes as its budget. A program taps more than that, with a function slower than the
device. Its peak of memory, less the peak of the same program without taps, is compared with the budget. Each program
runs in its own process, since the peak of a process never falls.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import hostcb
from benchmarks import running
from benchmarks.rows import Row, compared

MEBIBYTE = 1 << 20
BUDGET = 64
# In all, four times the budget.
TAPS = 256
SECONDS = 2e-3
TARGET = 1.2


def peak() -> float:
    """Return the peak of this process's memory so far, in MiB."""
    status = Path("/proc/self/status")
    # Not `getrusage`: on Linux a new process starts with the peak of its parent.
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if found:
        return int(found.group(1)) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEBIBYTE


def _slow(*_: Any) -> None:
    time.sleep(SECONDS)


def measured(budget: int, taps: int, tapped: bool) -> float:
    """Run a program with so many values of one MiB, and return the peak of this process."""
    jax.config.update("jax_host_callback_max_queue_byte_size", budget * MEBIBYTE)

    def step(_: Any, carry: Any) -> Any:
        carry = carry + 1
        return hostcb.id_tap(_slow, carry) if tapped else carry

    program = jax.jit(lambda start: jax.lax.fori_loop(0, taps, step, start))
    jax.block_until_ready(program(jnp.zeros(MEBIBYTE // 4, jnp.float32)))
    hostcb.barrier_wait()
    return peak()


def run(rounds: int = 5, budget: int = BUDGET, taps: int = TAPS) -> list[Row]:
    peaks: dict[bool, list[float]] = {tapped: [] for tapped in (False, True)}
    for _ in range(rounds):
        for tapped, values in peaks.items():
            chosen = json.dumps({"budget": budget, "taps": taps, "tapped": tapped})
            values.append(running.in_process("benchmarks.memory", "--inside", chosen))
    above = [with_taps - without for without, with_taps in zip(*peaks.values(), strict=True)]
    what = f"peak of {taps} MiB tapped slowly"
    return [compared("memory", what, "the queue's budget", above, [budget] * rounds, TARGET, "MiB")]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        print(measured(**json.loads(sys.argv[2])))
    else:
        sys.exit(running.main({"memory": sys.modules[__name__]}, None, ["memory"]))
