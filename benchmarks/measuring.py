"""Measuring programs in turns, so that whatever else the machine does falls on all of them, and reporting ratios."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from benchmarks.subjects import barrier

# Microseconds a step, round by round: until the device is done, and until the callbacks are too.
Times = dict[str, dict[str, list[float]]]


def measure(programs: Mapping[str, Callable[[Any], Any]], argument: Any, rounds: int, steps: int, repeat: int) -> Times:
    """Run each program `repeat` times a round; `steps` is how many callbacks a run makes."""
    for program in programs.values():
        for _ in range(2):
            jax.block_until_ready(program(argument))
        barrier()
    times: Times = {name: {"device": [], "drained": []} for name in programs}
    per_step = 1e6 / (steps * repeat)
    for _ in range(rounds):
        for name, program in programs.items():
            begin = time.perf_counter()
            for _ in range(repeat):
                jax.block_until_ready(program(argument))
            device = time.perf_counter()
            barrier()
            drained = time.perf_counter()
            times[name]["device"].append((device - begin) * per_step)
            times[name]["drained"].append((drained - begin) * per_step)
    return times


def options(description: str | None, name: str, rounds: int, arguments: Sequence[str]) -> argparse.Namespace:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", help="write the figures to files that begin with this name")
    return parser.parse_args(arguments)


def report(times: Times, title: str, comparisons: Sequence[tuple[str, str, float]], path: str | None) -> bool:
    """Print medians and ratios, write them to `path` if given, and say whether all targets are met."""
    print(f"jax {jax.__version__}, {title}: microseconds a callback, median (quartiles)")
    for name, phases in times.items():
        cells = []
        for phase, values in phases.items():
            low, middle, high = statistics.quantiles(values, n=4)
            cells.append(f"{phase} {middle:8.1f} ({low:.1f} to {high:.1f})")
        print(f"  {name:<30} {'   '.join(cells)}")
    met = True
    ratios = []
    for ours, theirs, target in comparisons:
        device, drained = (
            statistics.median(times[ours][phase]) / statistics.median(times[theirs][phase])
            for phase in ("device", "drained")
        )
        met &= device <= target
        verdict = "ok" if device <= target else "TOO SLOW"
        print(f"{ours} / {theirs}: {device:.3f} (target {target}, drained {drained:.3f}) {verdict}")
        ratios.append({"ours": ours, "theirs": theirs, "target": target, "ratio": device, "drained": drained})
    if path:
        with open(f"{path}.{title.replace(' ', '-')}.json", "w") as file:
            json.dump({"jax": jax.__version__, "title": title, "times": times, "ratios": ratios}, file)
    return met
