"""H11, H12: the memory of the rings and of large operands, where it is given back and where there is none."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest
from support.subprocesses import run_program

from hostcb._native.library import library
from hostcb._runtime.memory.owners import Owner, mapped
from hostcb._runtime.queue.device_queue import MOST_VALUES
from hostcb._runtime.queue.rings import Ring

pytestmark = pytest.mark.skipif(library.problem is not None, reason=f"the native extension: {library.problem}")


@pytest.mark.contract("H12")
def test_the_memory_of_an_empty_ring_goes_back_to_the_system() -> None:
    ring = Ring(1 << 20, MOST_VALUES)
    memory = np.frombuffer(ring.memory, np.uint8)
    memory[[0, -1]] = 1
    ring.trim()
    assert not memory[[0, -1]].any(), "a page that the system has taken back is zero"


def owned(nbytes: int) -> Owner:
    owner = Owner()
    assert library.held.hostcb_own(ctypes.byref(owner), nbytes)
    return owner


@pytest.mark.contract("H12")
def test_a_block_larger_than_all_that_may_be_ready_leaves_the_ready_ones() -> None:
    Ring(1 << 20, MOST_VALUES).trim()
    small, large = owned(1 << 20), owned((64 << 20) + 1)
    del small
    assert mapped()[1] == 1 << 20
    del large
    assert mapped()[1] == 1 << 20


# The operands that the function keeps are in blocks, so each further value needs new ones.
WITHOUT_MEMORY_FOR_TWO = """
import resource
kept = []
def tap(arg, transforms):
    if len(kept) < 2:
        kept.append(arg)

program = jax.jit(lambda x, y: hcb.id_tap(tap, (x, y))[0][0])
def run(number):
    program(jnp.full(1 << 24, number), jnp.full(1 << 24, number + 1)).block_until_ready()

run(1.0)
run(3.0)
hcb.barrier_wait()
x, y = jnp.full(1 << 24, 5.0), jnp.full(1 << 24, 6.0)
jax.block_until_ready((x, y))
limits = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), limits[1]))
try:
    program(x, y).block_until_ready()
    error = "none"
except Exception as raised:
    error = str(raised)
resource.setrlimit(resource.RLIMIT_AS, limits)
for number in (7.0, 9.0, 11.0):
    run(number)
hcb.barrier_wait()
found = [sorted(set(map(float, np.unique(each)))) for pair in kept for each in pair]
print(json.dumps(["hostcb found no 67108864 bytes for a tapped operand" in error or error, found]))
"""


@pytest.mark.contract("H11")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit a process's memory")
def test_operands_that_are_kept_stay_where_a_later_value_finds_no_memory() -> None:
    ended = run_program(WITHOUT_MEMORY_FOR_TWO, devices=None, env={"HOSTCB_NATIVE": "1"}, timeout=60)
    assert ended.json() == [True, [[1.0], [2.0], [3.0], [4.0]]]


@pytest.mark.contract("H5", "H11", "H12", "H29")
def test_values_that_come_while_others_wait_are_written_around_the_end_of_the_ring() -> None:
    """A ring that is empty begins at the begin of its memory anyway."""
    source = """
from hostcb._runtime.queue.rings import CAPACITY
elements = 1 << 14
fits = CAPACITY // (4 * elements)
before, held, after = fits * 12 // 16, fits * 8 // 16, fits * 11 // 16
seen, reached, gate = [], threading.Event(), threading.Event()
held_at = 2
def tap(a, t):
    seen.append((float(a[0]), bool((a == a[0]).all())))
    if len(seen) == held_at:
        reached.set()
        gate.wait(10)
loop = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: hcb.id_tap(tap, x) + 1, x))
# Where the operands of the first values were, the ring ends for the others.
filling = CAPACITY // (4 * (elements - 1000))
for size, count in ((elements - 1000, 1), (elements - 1000, filling), (elements, 1)):
    jax.block_until_ready(loop(np.ones(size, np.float32), count))
    if count == filling:
        gate.set()
hcb.barrier_wait()
seen.clear(), reached.clear(), gate.clear()
held_at, start = held, hcb.stats()
between = loop(np.zeros(elements, np.float32), before)
assert reached.wait(30), len(seen)
jax.block_until_ready(loop(between, after))
gate.set()
hcb.barrier_wait()
count = before + after
assert seen == [(float(number), True) for number in range(count)], seen
of = (hcb.stats() - start)[jax.devices()[0]]
assert (of.taps, of.taps_run, of.bytes) == (count, count, 4 * elements * count), of
assert (of.queued, of.queued_bytes) == (0, 0), of
print("done")
"""
    assert run_program(source, timeout=120).check().lines == ["done"]
