"""A training step whose metrics are tapped, beside a thread that computes in Python: `python -m benchmarks.training`.

The model has two layers. The thread stands for a loader of data. Each step is a dispatch of its own, as in a usual
training loop, and the loop reads the metrics once at its end. Each step returns its metrics, tapped or not. Otherwise
the compiler would leave the work for the metrics out of the step without callbacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hostcb
from benchmarks import running
from benchmarks.busy import computing, interval_of
from benchmarks.measuring import measure
from benchmarks.rows import Row, compared

STEPS = 30
BATCH, INPUTS, HIDDEN, CLASSES = 256, 784, 256, 10
RATE = 1e-3
# A subject's name that begins with "jax " has Python's usual switch interval.
ALONE = "jax without callbacks"
TARGETS = {"metrics tapped": 1.02, "jax debug.callback of the metrics": None}

Observe = Callable[[Any], Any]


def _ignore(*_: Any) -> None:
    return None


def _tapped(metrics: Any) -> Any:
    return hostcb.id_tap(_ignore, metrics)


def _debugged(metrics: Any) -> Any:
    jax.debug.callback(_ignore, metrics)
    return metrics


OBSERVERS: dict[str, Observe | None] = {
    "metrics tapped": _tapped,
    "jax debug.callback of the metrics": _debugged,
    ALONE: None,
}


def _loss(weights: tuple[Any, Any], inputs: Any, labels: Any) -> Any:
    hidden = jax.nn.relu(inputs @ weights[0])
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(hidden @ weights[1]) * labels, axis=-1))


def _program(name: str, steps: int) -> Callable[[], Any]:
    observe = OBSERVERS[name]

    @jax.jit
    def step(weights: tuple[Any, Any], inputs: Any, labels: Any) -> Any:
        loss, slopes = jax.value_and_grad(_loss)(weights, inputs, labels)
        metrics = {"loss": loss, "norm": sum(jnp.vdot(each, each) for each in slopes)}
        if observe is not None:
            metrics = observe(metrics)
        return tuple(old - RATE * slope for old, slope in zip(weights, slopes, strict=True)), metrics

    keys = jax.random.split(jax.random.key(0), 4)
    weights = (
        jax.random.normal(keys[0], (INPUTS, HIDDEN)) / INPUTS**0.5,
        jax.random.normal(keys[1], (HIDDEN, CLASSES)) / HIDDEN**0.5,
    )
    inputs = jax.random.normal(keys[2], (BATCH, INPUTS))
    labels = jax.nn.one_hot(jax.random.randint(keys[3], (BATCH,), 0, CLASSES), CLASSES)

    def train() -> Any:
        trained, metrics = weights, None
        with interval_of(name):
            for _ in range(steps):
                trained, metrics = step(trained, inputs, labels)
            return jax.block_until_ready((trained, metrics))

    return train


def run(rounds: int = 15, steps: int = STEPS) -> list[Row]:
    programs = {name: _program(name, steps) for name in OBSERVERS}
    rows = []
    for busy in (True, False):
        with computing(busy):
            times = measure(programs, rounds, steps)
        where = "a loader computing" if busy else "idle"
        for name, target in TARGETS.items():
            ours, theirs = times[name]["drained"], times[ALONE]["drained"]
            rows.append(compared("training", f"{name}, {where}", "no callbacks", ours, theirs, target))
    return rows


if __name__ == "__main__":
    sys.exit(running.main({"training": sys.modules[__name__]}, None, ["training"]))
