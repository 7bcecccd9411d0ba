"""`progress_bar` around a warm-up and a `scan` of NUTS: each step that the bar receives, in order."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import timing

# `blackjax.progress_bar` is the function.
bars: Any = import_module("blackjax.progress_bar")
steps: list[int] = []
plain = bars.ProgressState._step_callback


def told(state: Any, step: int) -> None:
    steps.append(step)
    plain(state, step)


bars.ProgressState._step_callback = told


def logdensity(x: Any) -> Any:
    return -0.5 * jnp.sum((x - 3.0) ** 2)


def sample(key: Any, state: Any, kernel: Any, count: int) -> Any:
    def step(state: Any, key: Any) -> Any:
        state, _ = kernel(key, state)
        return state, state.position

    return jax.lax.scan(step, state, jax.random.split(key, count))[1]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with blackjax.progress_bar(label="NUTS", print_rate=1):
        warm_up = blackjax.window_adaptation(blackjax.nuts, logdensity)
        (state, parameters), _ = warm_up.run(jax.random.key(0), jnp.zeros(2), 200)
        jax.block_until_ready(state)
        jax.effects_barrier()
        print(len(steps), steps == sorted(steps), state.position.round(3).tolist())
        steps.clear()
        kernel = blackjax.nuts(logdensity, **parameters).step
        sampled = jax.jit(lambda key: sample(key, state, kernel, 300))
        positions = sampled(jax.random.key(1))
        jax.effects_barrier()
        assert steps == [*range(300)], steps
        print(len(steps), positions.mean(0).round(3).tolist())
        timing.report(lambda: sampled(jax.random.key(1)))
