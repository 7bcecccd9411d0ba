"""`scan_tqdm` and `loop_tqdm`, and two bars of one `scan` under vmap: each update of each bar, in order."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import timing
import tqdm.std
from jax_tqdm import PBar, loop_tqdm, scan_tqdm

COUNT = 1000
written = io.StringIO()
updates: list[tuple[str, int]] = []
plain_update = tqdm.std.tqdm.update


def update(bar: Any, number: int = 1) -> Any:
    updates.append((bar.desc, bar.n + number))
    return plain_update(bar, number)


tqdm.std.tqdm.update = update


@scan_tqdm(COUNT, print_rate=10, tqdm_type="std", desc="scan", file=written)
def step(carry: Any, number: Any) -> Any:
    return carry + number, carry


@loop_tqdm(COUNT, print_rate=10, tqdm_type="std", desc="loop", file=written)
def body(number: Any, carry: Any) -> Any:
    return carry + number


programs = {
    "scan": jax.jit(lambda: jax.lax.scan(step, 0, jnp.arange(COUNT))[0]),
    "loop": jax.jit(lambda: jax.lax.fori_loop(0, COUNT, body, 0)),
}
for name, program in programs.items():
    updates.clear()
    assert program() == COUNT * (COUNT - 1) // 2
    jax.effects_barrier()
    assert updates == [(name, number) for number in range(10, COUNT + 1, 10)], updates
    print(name, *(number for _, number in updates))
    assert f"{COUNT}/{COUNT}" in written.getvalue()

updates.clear()
each = jax.vmap(lambda start, bar: jax.lax.scan(step, PBar(id=bar, carry=start), jnp.arange(COUNT))[0].carry)
print(each(jnp.arange(2), jnp.arange(2)).tolist())
jax.effects_barrier()
print("both", *(number for _, number in updates))

timing.report(lambda: [program() for program in programs.values()])
