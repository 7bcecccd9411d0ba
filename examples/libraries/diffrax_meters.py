"""`TextProgressMeter` and `TqdmProgressMeter`, also under vmap, and the error of a solve that fails."""

from __future__ import annotations

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import timing
import tqdm.std

positions: list[float] = []
plain_update = tqdm.std.tqdm.update


def update(bar: Any, n: int = 1) -> Any:
    positions.append(round(float(bar.n), 2))
    return plain_update(bar, n)


tqdm.std.tqdm.update = update


@eqx.filter_jit
def solve(start: Any, meter: Any, max_steps: int = 4096) -> Any:
    solution = dfx.diffeqsolve(
        dfx.ODETerm(lambda t, y, args: -y),
        dfx.Tsit5(),
        t0=0.0,
        t1=5.0,
        dt0=0.01,
        y0=start,
        progress_meter=meter,
        max_steps=max_steps,
    )
    return solution.ys[0]


text = dfx.TextProgressMeter(minimum_increase=0.1)
print(solve(jnp.float32(1.0), text).round(4))
jax.effects_barrier()
print(jax.vmap(lambda start: solve(start, text))(jnp.array([1.0, 2.0])).round(4).tolist())
jax.effects_barrier()

print(solve(jnp.float32(1.0), dfx.TqdmProgressMeter(refresh_steps=50)).round(4))
jax.effects_barrier()
print(*positions)
assert positions == sorted(positions)
assert positions[-1] == 100.0

try:
    solve(jnp.float32(1.0), dfx.NoProgressMeter(), max_steps=10)
except eqx.EquinoxRuntimeError as error:
    print([line for line in str(error).splitlines() if "maximum number of solver steps" in line])

silent = dfx.TqdmProgressMeter(refresh_steps=1)
solve(jnp.float32(1.0), silent)
timing.report(lambda: solve(jnp.float32(1.0), silent))
