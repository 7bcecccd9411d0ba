"""What one callback in a device loop costs, beside JAX's own: `python -m benchmarks.loop`.

Each subject runs a 100-step `fori_loop` with one callback on a `float32` scalar a step. The subjects take turns, round
after round, so that whatever else the machine does falls on all of them; medians are compared. The exit status is 1 if
a ratio is above its target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import hostcb

STEPS = 100
SCALAR = jax.ShapeDtypeStruct((), np.float32)

# Ours, JAX's, and how much of JAX's time ours may take.
COMPARISONS = (("call", "io_callback(ordered=True)", 0.2), ("id_tap", "debug.callback", 0.35))


def _identity(value: Any) -> Any:
    return value


def _nothing(*_: Any) -> None:
    return None


def _loop(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(lambda start: jax.lax.fori_loop(0, STEPS, lambda _, carry: step(carry), start))


def subjects() -> dict[str, tuple[Callable[[Any], Any], Callable[[], None]]]:
    """Each subject's program and the barrier that ends its callbacks."""

    def debug(value: Any) -> Any:
        jax.debug.callback(_nothing, value)
        return value

    return {
        "call": (_loop(lambda x: hostcb.call(_identity, x, result_shape=SCALAR)), hostcb.barrier_wait),
        "io_callback(ordered=True)": (
            _loop(lambda x: io_callback(_identity, SCALAR, x, ordered=True)),
            jax.effects_barrier,
        ),
        "id_tap": (_loop(lambda x: hostcb.id_tap(_nothing, x)), hostcb.barrier_wait),
        "debug.callback": (_loop(debug), jax.effects_barrier),
    }


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds a step: until the device is done, and until the callbacks are too."""
    programs = subjects()
    start = jnp.float32(1)
    for program, barrier in programs.values():
        program(start).block_until_ready()
        barrier()
    times: dict[str, dict[str, list[float]]] = {name: {"device": [], "drained": []} for name in programs}
    for _ in range(rounds):
        for name, (program, barrier) in programs.items():
            begin = time.perf_counter()
            program(start).block_until_ready()
            device = time.perf_counter()
            barrier()
            drained = time.perf_counter()
            times[name]["device"].append((device - begin) / STEPS * 1e6)
            times[name]["drained"].append((drained - begin) / STEPS * 1e6)
    return times


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args(arguments)

    times = measure(options.rounds)
    print(f"jax {jax.__version__}, {options.rounds} rounds, microseconds a step: median (quartiles)")
    for name, phases in times.items():
        cells = []
        for phase, values in phases.items():
            low, middle, high = statistics.quantiles(values, n=4)
            cells.append(f"{phase} {middle:6.1f} ({low:.1f} to {high:.1f})")
        print(f"  {name:<26} {'   '.join(cells)}")

    failed = False
    for ours, theirs, target in COMPARISONS:
        ratio = statistics.median(times[ours]["device"]) / statistics.median(times[theirs]["device"])
        drained = statistics.median(times[ours]["drained"]) / statistics.median(times[theirs]["drained"])
        failed |= ratio > target
        verdict = "ok" if ratio <= target else "TOO SLOW"
        print(f"{ours} / {theirs}: {ratio:.3f} (target {target}, drained {drained:.3f}) {verdict}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"jax": jax.__version__, "steps": STEPS, "times": times}, file)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
