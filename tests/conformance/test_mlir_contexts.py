"""A worker lowers several programs in one context of MLIR, where JAX makes one for each (C69)."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest

from conformance.spec.versions import version_matches
from conformance.worker.private_jax import MAKES_EACH_CONTEXT, several_times

pytestmark = pytest.mark.contract("C69")

ROOT = Path(__file__).parents[2]
DEADLINE = 120.0


def test_a_thread_has_its_own() -> None:
    made = several_times(object, 10)
    seen: list[object] = []
    barrier = threading.Barrier(2)

    def make() -> None:
        mine = [made() for _ in range(3)]
        barrier.wait(DEADLINE)
        # After the other thread has made its own.
        seen.extend({*mine, made()})

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(seen) == 2
    assert seen[0] is not seen[1]


PROGRAMS = """
import threading
import jax, jax.numpy as jnp, numpy as np
from jax._src.interpreters import mlir
from conformance.worker import private_jax

contexts = []

def counted(make=mlir.make_ir_context):
    contexts.append(threading.get_ident())
    return make()

mlir.make_ir_context = counted
private_jax.reuse_contexts()
import hostcb as hcb

seen = []
inner = jax.jit(lambda x: x * 3)

def host(x):
    # A program is lowered inside of another one's callback, and one inside of another's trace below.
    return np.asarray(jax.jit(lambda x: x + 0.5)(x)), seen.append(float(x))

def program(number):
    scale = float(jax.jit(lambda x: x + number)(1.0))
    def step(carry, x):
        carry = hcb.call(lambda x: host(x)[0], carry + inner(x) * scale, result_shape=carry)
        return carry, carry
    return jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(2.0)))

for number in range(12):
    last, all_of_them = program(number)(jnp.float32(1))
    # 1 + 0 + 0.5, and then 1.5 + 3 * (number + 1) + 0.5
    assert last == 5.0 + 3 * number, (number, last)
    assert all_of_them.tolist() == [1.5, 5.0 + 3 * number]
hcb.barrier_wait()
assert seen == [value for number in range(12) for value in (1.0, 4.5 + 3 * number)], seen
text = jax.jit(lambda x: x + 1).lower(1.0).as_text()
assert "stablehlo.add" in text
print(len(contexts))
"""


WORKER = """
import sys
from conformance.worker.__main__ import main

# Without an implementation it ends when it has reported its devices.
sys.argv = ["worker", "cpu-1dev"]
main()
from jax._src.interpreters import mlir

raise SystemExit(mlir.make_ir_context() is not mlir.make_ir_context())
"""


@pytest.mark.parametrize("program", [PROGRAMS, WORKER], ids=["programs", "worker"])
def test_programs_share_a_context_and_are_what_they_are_in_one_each(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "leaked" not in ended.stderr
    if program is PROGRAMS:
        # 12 scans and 12 smaller ones, each with others: JAX asks for more contexts than 40.
        shared = version_matches(jax.__version__, MAKES_EACH_CONTEXT)
        assert int(ended.stdout) <= 20 if shared else int(ended.stdout) > 40
