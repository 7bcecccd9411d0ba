"""Callbacks of several devices at once, against those of one device and JAX's own: `python -m benchmarks.devices`.

A `pmap` over 1, 2, 4 and 8 CPU devices runs a loop with one callback a step on each. All callbacks need the interpreter
lock, so more devices cannot make more callbacks a second, but should not make many fewer. The figure is the time for
one callback, counting those of all devices; 1.25 times the time is 0.8 times the rate.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import running
from benchmarks.measuring import Times, measure
from benchmarks.parts import FLOOR, PARTS
from benchmarks.rows import Row, compared
from benchmarks.subjects import Subject

COUNTS = (1, 2, 4, 8)
# So many steps that the dispatch, which takes longer on more devices, is a small part.
STEPS = 1000
JAXS = "jax io_callback"
# The last two have no target: they show how much the bare runtime target and JAX's own callbacks lose.
TARGETS = {"id_tap": 1.25, "call": 1.25, FLOOR: None, JAXS: None}
# Of JAX's own, on as many devices.
MOST_OF_JAXS = 0.8


def _program(step: Subject, count: int, steps: int) -> Callable[[], Any]:
    looped = jax.pmap(
        lambda start: jax.lax.fori_loop(0, steps, lambda _, carry: step(carry), start), devices=jax.devices()[:count]
    )
    return functools.partial(looped, jnp.ones(count, jnp.float32))


def measured(rounds: int, steps: int, counts: tuple[int, ...]) -> dict[str, Times]:
    """Measure microseconds a callback over all devices, by number of devices, in a process with enough devices."""
    programs = {f"{name} {count}": _program(PARTS[name], count, steps) for name in TARGETS for count in counts}
    times = measure(programs, rounds, callbacks=steps)
    return {
        str(count): {
            name: {phase: [each / count for each in series] for phase, series in times[f"{name} {count}"].items()}
            for name in TARGETS
        }
        for count in counts
    }


def run(rounds: int = 15, steps: int = STEPS, counts: tuple[int, ...] = COUNTS) -> list[Row]:
    chosen = json.dumps({"rounds": rounds, "steps": steps, "counts": counts})
    times = running.in_process("benchmarks.devices", "--inside", chosen, devices=max(counts))
    one, most = str(counts[0]), str(counts[-1])
    beside_jax = [
        compared("devices", f"{name} on {most}", JAXS, times[most][name]["drained"], base, MOST_OF_JAXS)
        for name in ("id_tap", "call")
        for base in [times[most][JAXS]["drained"]]
    ]
    return beside_jax + [
        compared("devices", f"{name} on {count}", f"on {one}", times[str(count)][name]["drained"], base, target)
        for name, target in TARGETS.items()
        for base in [times[one][name]["drained"]]
        for count in counts[1:]
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps(measured(**json.loads(sys.argv[2]))))
    else:
        sys.exit(running.main({"devices": sys.modules[__name__]}, None, ["devices"]))
