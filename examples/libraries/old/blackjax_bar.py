"""`progress_bar=True` of `run_inference_algorithm`, with elliptical slices: each step that the bar receives."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import blackjax
import fastprogress.fastprogress
import jax
import jax.numpy as jnp
from blackjax.util import run_inference_algorithm
from jax.experimental import host_callback

steps: list[int] = []
plain_update = fastprogress.fastprogress.ProgressBar.update_bar


def update(bar: Any, step: Any) -> None:
    steps.append(int(step))
    plain_update(bar, step)


fastprogress.fastprogress.ProgressBar.update_bar = update


def loglikelihood(x: Any) -> Any:
    return -0.5 * jnp.sum((x - 3.0) ** 2)


slices = blackjax.elliptical_slice(loglikelihood, mean=jnp.zeros(2), cov=jnp.ones(2))
with contextlib.redirect_stdout(io.StringIO()):
    _, states, _ = run_inference_algorithm(jax.random.PRNGKey(0), jnp.zeros(2), slices, 2000, progress_bar=True)
    host_callback.barrier_wait()
assert jnp.allclose(states.position[500:].mean(0), 1.5, atol=0.3), states.position
print(*steps)
