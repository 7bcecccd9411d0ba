"""A JAX whose dispatch hostcb does not know: less is promised, and said so."""

from __future__ import annotations

from subprocesses import run_program


def test_h5_without_the_hooks_callbacks_still_run_in_order() -> None:
    source = """
import logging
logging.basicConfig(format="%(message)s")
from jax._src.interpreters import pxla
executor, pxla.ExecuteReplicated = pxla.ExecuteReplicated, None
import hostcb as hcb
pxla.ExecuteReplicated = executor
import jax, numpy as np

seen = []
f = jax.jit(lambda x: hcb.call(lambda a: seen.append(a.item()) or a, hcb.id_tap(lambda a, t: seen.append("tap"), x),
                               result_shape=x))
for value in range(3):
    f(np.float32(value))
hcb.barrier_wait()
print(seen)
count = []
jax.pmap(lambda x: hcb.id_tap(lambda a, t, device: count.append(device.id), x, tap_with_device=True))(np.arange(8.0))
hcb.barrier_wait()
print(sorted(count))
"""
    ended = run_program(source, prelude="").check()
    assert ended.lines == ["['tap', 0.0, 'tap', 1.0, 'tap', 2.0]", str(list(range(8)))], str(ended)
    assert "order across threads is not kept" in ended.stderr, str(ended)
