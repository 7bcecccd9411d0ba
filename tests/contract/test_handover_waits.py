"""H11, H12, H24: the waits of the native extension, for values that are being copied and for the end of a sleep."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import pytest
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._native.library import library
from hostcb._runtime.queue.device_queue import MOST_VALUES
from hostcb._runtime.queue.queues import queues
from hostcb._runtime.queue.rings import Ring

pytestmark = pytest.mark.skipif(library.problem is not None, reason=f"the native extension: {library.problem}")

# The record of a value that another thread copies, as handover.h has it. The next value shows the records before it.
WAITING = """
import ctypes, threading
from hostcb._native.library import LIBRARY, library
from hostcb._runtime.queue.queues import queues

class Record(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint32), ("blocks", ctypes.c_uint32), ("site", ctypes.c_uint64),
                ("bytes", ctypes.c_uint64), ("on_its_way", ctypes.c_uint64)]

seen = []
program = jax.jit(lambda x: hcb.id_tap(lambda a, t: seen.append(float(a)), x) + 1)
for number in range(2):
    program(float(number))
hcb.barrier_wait()
ring = queues[jax.devices()[0]].ring
size = ctypes.sizeof(Record)
record = Record.from_buffer(ring.memory, ring.counters.reserved % len(ring.memory))
record.length, record.blocks, record.site, record.bytes, record.on_its_way = size, 0, 2**64 - 1, 0, ring.address
ring.counters.reserved += size
# Without the interpreter lock, which this thread needs.
wait = lambda: getattr(ctypes.CDLL(str(LIBRARY)), NAME)(ctypes.c_void_p(ring.address), 0)
waiting = threading.Thread(target=wait, daemon=True)
waiting.start()
waiting.join(0.3)
waited = waiting.is_alive()
record.on_its_way = 0
library.held.hostcb_attend(ring.address, 1)
program(2.0)
waiting.join(20)
hcb.barrier_wait()
print(json.dumps([waited, waiting.is_alive(), seen]))
"""


@pytest.mark.contract("H12")
@pytest.mark.parametrize("name", ["hostcb_settle", "hostcb_attend"])
def test_a_wait_ends_when_a_value_that_was_on_its_way_is_there(name: str) -> None:
    """`hostcb_attend` with a 0 tells the ring that there is no consumer any more."""
    ended = run_program(f"NAME = {name!r}\n{WAITING}", devices=1, env={"HOSTCB_NATIVE": "1"}, timeout=60)
    assert ended.json() == [True, False, [0.0, 1.0, 2.0]]


@pytest.mark.contract("H12")
def test_a_value_that_has_arrived_is_no_longer_on_its_way(devices: list[jax.Device]) -> None:
    program = jax.jit(lambda x: hcb.id_tap(lambda arg, transforms: None, x) + 1)
    for _ in range(3):
        program(jnp.zeros(1 << 18)).block_until_ready()
    hcb.barrier_wait()
    ring = queues[devices[0]].ring
    assert ring is not None
    assert (ring.counters.values_on_their_way, ring.counters.bytes_on_their_way) == (0, 0)


@pytest.mark.contract("H11")
def test_a_consumer_that_lingers_sleeps_as_long_as_it_asks_for() -> None:
    ring = Ring(1 << 20, MOST_VALUES)
    never = (1 << 64) - 1
    bells = library.free.hostcb_sleep(ring.address, never, 0)
    started = time.monotonic()
    assert library.free.hostcb_sleep(ring.address, bells, 50_000) == bells
    assert time.monotonic() - started >= 0.05
