"""H17, H24: a forked child has none of the large values of its parent."""

from __future__ import annotations

import os

import pytest
from support.subprocesses import run_program

from hostcb._native.library import library

pytestmark = [
    pytest.mark.contract("H24"),
    pytest.mark.skipif(library.problem is not None, reason=f"the library: {library.problem}"),
]

FORKING = """
from hostcb._runtime.memory import owners
from hostcb._runtime.queue.queues import queues
seen, gate = [], threading.Event()

def tap(arg, transforms):
    gate.wait(60)
    seen.append(float(arg[0]))

program = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda i, x: hcb.id_tap(tap, x) + 1, x))
x = jnp.zeros(1 << 18)
gate.set()
program(x).block_until_ready()
hcb.barrier_wait()
kept = []
jax.jit(lambda x: hcb.id_tap(lambda arg, transforms: kept.append(arg), x))(x + 5).block_until_ready()
hcb.barrier_wait()
gate.clear()
program(x).block_until_ready()
child = os.fork()
if child == 0:
    code = 1
    try:
        mapped, ready = owners.mapped()
        # The parent's values are gone, also the one whose function has begun in a thread that the child has not.
        assert mapped == ready, (mapped, ready)
        assert (kept[0] == 5).all() and len(seen) == 10
        # The array that is kept is whole, and its memory is the child's when it ends.
        kept.clear()
        assert owners.mapped() == (mapped + (1 << 20), ready + (1 << 20)), owners.mapped()
        code = 0
    finally:
        os._exit(code)
status = os.waitpid(child, 0)[1]
gate.set()
hcb.barrier_wait()
assert os.waitstatus_to_exitcode(status) == 0
assert (kept[0] == 5).all() and seen == [float(n) for n in range(10)] * 2
hcb.stop_outfeed_receiver()
kept.clear()
print(json.dumps(owners.mapped()[0] - owners.mapped()[1]))
"""


@pytest.mark.contract("H17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_drops_the_values_of_its_parent() -> None:
    assert run_program("import os\n" + FORKING, devices=None, env={"HOSTCB_NATIVE": "1"}, timeout=60).json() == 0


@pytest.mark.contract("H17")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_none_of_its_parents_blocks_in_python() -> None:
    source = """
from hostcb._runtime.memory.blocks import blocks
gate, began, kept = threading.Event(), threading.Event(), []

def tap(arg, transforms):
    began.set()
    gate.wait(60)

program = jax.jit(lambda x: hcb.id_tap(tap, x))
jax.jit(lambda x: hcb.call(lambda arg: kept.append(arg), x))(jnp.full(1 << 18, 5.0))
program(jnp.zeros(1 << 18))
began.wait(60)
# Those of the array that is kept, and of the function that has begun.
assert len(blocks._lent) == 2, blocks._lent
child = os.fork()
if child == 0:
    code = 1
    try:
        assert not blocks._lent and (kept[0] == 5).all()
        kept.clear()
        assert (blocks.copy(np.ones(1 << 20)) == 1).all() and not blocks._lent
        code = 0
    finally:
        os._exit(code)
status = os.waitpid(child, 0)[1]
gate.set()
hcb.barrier_wait()
assert os.waitstatus_to_exitcode(status) == 0
kept.clear()
print(json.dumps(len(blocks._lent)))
"""
    ended = run_program(source, devices=None, env={"HOSTCB_NATIVE": "0"}, timeout=60, warnings="ignore")
    assert ended.json() == 0
