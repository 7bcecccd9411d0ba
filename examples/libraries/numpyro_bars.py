"""The progress bars of `MCMC`, for parallel chains on two devices: how far each bar comes, and the samples."""

from __future__ import annotations

import os
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import timing
import tqdm.auto
from numpyro.infer import MCMC, NUTS

CHAINS = 2
updates: list[int] = []
plain_update = tqdm.auto.tqdm.update


def update(bar: Any, n: int = 1) -> Any:
    updates.append(int(n))
    return plain_update(bar, n)


tqdm.auto.tqdm.update = update


def model(data: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    numpyro.sample("data", dist.Normal(mean, 1), obs=data)


def run() -> MCMC:
    sampler = MCMC(
        NUTS(model), num_warmup=50, num_samples=50, num_chains=CHAINS, chain_method="parallel", progress_rate=1
    )
    sampler.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0]))
    jax.effects_barrier()
    return sampler


samples = run().get_samples()["mean"]
assert sum(updates) == 100 * CHAINS, updates
print(len(updates), samples.shape, samples.mean().round(3), samples[:3].round(4).tolist())

sampler = run()
timing.report(lambda: sampler.run(jax.random.key(0), jnp.array([1.0, 2.0, 3.0])), rounds=3)
