"""H11, H12: the memory of the rings and of large operands, where it is given back and where there is none."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest
from subprocesses import run_program

from hostcb._native.library import library
from hostcb._runtime.owners import Owner, mapped
from hostcb._runtime.queues import MOST_VALUES
from hostcb._runtime.rings import Ring

pytestmark = pytest.mark.skipif(library.problem is not None, reason=f"the library in C: {library.problem}")


@pytest.mark.contract("H12")
def test_the_memory_of_an_empty_ring_goes_back_to_the_system() -> None:
    ring = Ring(1 << 20, MOST_VALUES, pinned=False)
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
    Ring(1 << 20, MOST_VALUES, pinned=False).trim()
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
