"""The progress bars of a compiled sampler and of a compiled optimizer: each update of each bar."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import tqdm.std
from jax.experimental import host_callback
from sgmcmcjax.optimizer import build_optax_optimizer
from sgmcmcjax.samplers import build_sgld_sampler

updates: list[int] = []
plain_update = tqdm.std.tqdm.update


def update(bar: Any, number: Any = 1) -> Any:
    updates.append(int(bar.n + number))
    return plain_update(bar, number)


tqdm.std.tqdm.update = update


def loglikelihood(theta: Any, x: Any) -> Any:
    return -0.5 * jnp.sum((x - theta) ** 2)


def logprior(theta: Any) -> Any:
    return -0.5 * jnp.sum(theta**2)


data = (jax.random.normal(jax.random.PRNGKey(1), (1000, 2)) + 3.0,)

sample = build_sgld_sampler(1e-4, loglikelihood, logprior, data, 100)
samples = sample(jax.random.PRNGKey(0), 1000, jnp.zeros(2))
host_callback.barrier_wait()
assert jnp.allclose(samples[500:].mean(0), 3.0, atol=0.2), samples
print("sampler", *updates)

updates.clear()
optimize = build_optax_optimizer(optax.adam(1e-2), loglikelihood, logprior, data, 100)
found, _ = optimize(jax.random.PRNGKey(0), 1000, jnp.zeros(2))
host_callback.barrier_wait()
assert jnp.allclose(found, 3.0, atol=0.3), found
print("optimizer", *updates)
