"""Metrics of a training loop on the device as a file of JSON lines, without a wait for the file at any step.

Run it with `python examples/recipes/metrics_jsonl.py`: it prints the first and the last line of the file. With
`--measure` it prints how long the loop takes with the file, relative to the loop without it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

import hostcb


class JsonLines:
    """A file with a line of JSON for each tapped dictionary of metrics, and its device."""

    def __init__(self, path: Path) -> None:
        # Each line is there for other programs at once.
        self._file = path.open("w", encoding="utf-8", buffering=1)
        # The taps of several devices come in several threads.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            hostcb.barrier_wait()
        finally:
            self._file.close()

    def tap(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Write the metrics in a program on the device, which goes on at once; under `vmap` a metric is a list."""
        return hostcb.id_tap(self._write, metrics, tap_with_device=True)

    def _write(self, metrics: dict[str, Any], transforms: Any, *, device: Any) -> None:
        line = {"device": str(device), **{name: np.asarray(value).tolist() for name, value in metrics.items()}}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")


def training(log: Callable[[dict[str, Any]], Any], steps: int) -> Callable[[Any], Any]:
    """Return a jitted gradient descent that logs its loss, and the norm of the gradient, at each step."""
    inputs = jax.random.normal(jax.random.key(0), (512, 128))

    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(inputs @ weights) - jnp.tanh(inputs)) ** 2)

    def step(weights: Any, index: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights)
        metrics = {"step": index, "loss": value, "gradient": jnp.linalg.norm(gradient)}
        return weights - 10 * gradient, log(metrics)

    return jax.jit(lambda weights: jax.lax.scan(step, weights, jnp.arange(steps)))


def measure(path: Path, steps: int = 100, rounds: int = 21) -> tuple[float, float]:
    """Return the time of the steps with the file relative to that without it: the median, and that of the best times.

    The two run in turns. On a busy machine the best times are the better guide.
    """
    start = jnp.zeros((128, 128))
    with JsonLines(path) as lines:

        def seconds(program: Callable[[Any], Any]) -> float:
            begin = time.perf_counter()
            jax.block_until_ready(program(start))
            end = time.perf_counter()
            # The last lines are written meanwhile.
            hostcb.barrier_wait()
            return end - begin

        # Both compute the metrics, and return those of all steps.
        programs = training(lines.tap, steps), training(lambda metrics: metrics, steps)
        [seconds(program) for program in programs]
        times = [[seconds(program) for program in programs] for _ in range(rounds)]
    logged, bare = map(min, zip(*times, strict=True))
    return statistics.median(logged / bare for logged, bare in times), logged / bare


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        if "--measure" in sys.argv[1:]:
            print("with the file / without it: {:.3f}, of the best times {:.3f}".format(*measure(path)))
            return
        with JsonLines(path) as lines:
            training(lines.tap, 100)(jnp.zeros((128, 128)))
        first, *_, last = path.read_text().splitlines()
    print(first)
    print(last)


if __name__ == "__main__":
    main()
