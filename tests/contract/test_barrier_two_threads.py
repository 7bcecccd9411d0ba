"""A program that a tap started is started by another thread, too: what it taps and calls, and a barrier (H12, H13)."""

from __future__ import annotations

import pytest
from support.sessions import rounds
from support.subprocesses import run_program

PROGRAM = """
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()[1:3]), ("x",))
operands = [jax.device_put(np.full(2, number, np.float32), NamedSharding(mesh, P("x"))) for number in range(3)]
outside = jax.device_put(np.float32(0), jax.devices()[0])
seen, in_time = [], []
runs, both, ended, release = (threading.Event() for _ in range(4))

def held(value):
    runs.set()
    both.wait(20)
    return np.asarray(value)

def note(value, transforms):
    release.wait(20)
    seen.append(float(np.asarray(value)[0]))

@jax.jit
def inner(x):
    return hcb.id_tap(note, hcb.call(held, x, result_shape=x))

def starts(value, transforms):
    threading.Event().wait(0.3)  # until the barrier waits
    jax.block_until_ready(inner(operands[1]))
    ended.set()

def other():
    runs.wait(20)
    result = inner(operands[2])
    both.set()
    jax.block_until_ready(result)

def barrier():
    hcb.barrier_wait()
    in_time[:] = seen

both.set()
release.set()
jax.block_until_ready(inner(operands[0]))
hcb.barrier_wait()
hcb.id_tap(lambda *_: None, outside)
hcb.barrier_wait()
for _ in range(int(sys.argv[1])):
    for event in (runs, both, ended, release):
        event.clear()
    seen.clear()
    threads = [threading.Thread(target=each) for each in (other, barrier)]
    threads[0].start()
    hcb.id_tap(starts, outside)
    threads[1].start()
    assert ended.wait(20)
    threads[1].join(0.3)  # one-sided: a barrier that does not wait returns meanwhile
    release.set()
    for thread in threads:
        thread.join(20)
    hcb.barrier_wait()
    assert 1.0 in in_time, (in_time, seen)
    assert sorted(seen) == [1.0, 2.0], seen
print("done")
"""


@pytest.mark.contract("H12", "H13")
def test_the_tap_of_a_program_that_two_threads_start_is_waited_for() -> None:
    """The queue of the tap is an earlier one than that of the tap that starts its program, and was joined already."""
    assert run_program(PROGRAM, str(rounds(2, 4)), timeout=120, devices=8).check().lines == ["done"]


HELD_UP = """
from jax.sharding import NamedSharding, PartitionSpec as P

what = sys.argv[1]
if what == "a full queue":
    jax.config.update("jax_host_callback_max_queue_byte_size", 100)
mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
operands = [jax.device_put(np.full(100, number, np.float32), NamedSharding(mesh, P("x"))) for number in range(3)]
outside = jax.device_put(np.float32(0), jax.devices()[0])
seen = []
runs, both = threading.Event(), threading.Event()

def held(value):
    runs.set()
    both.wait(20)
    return np.asarray(value)

@jax.jit
def inner(x):
    y = hcb.pure_callback(held, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    if what == "a call":
        return hcb.call(lambda value: seen.append(float(value[0])) or np.asarray(value), y, result_shape=x)
    return hcb.id_tap(lambda value, transforms: seen.append(float(value[0])), y)

def starts(value, transforms):
    jax.block_until_ready(inner(operands[1]))

def other():
    runs.wait(20)
    result = inner(operands[2])
    both.set()
    jax.block_until_ready(result)

both.set()
jax.block_until_ready(inner(operands[0]))
hcb.barrier_wait()
both.clear()
runs.clear()
thread = threading.Thread(target=other)
thread.start()
hcb.id_tap(starts, outside)
hcb.barrier_wait()
thread.join()
hcb.barrier_wait()
assert sorted(seen) == [0.0, 1.0, 2.0], seen
print("done")
"""


@pytest.mark.contract("H12", "H13")
@pytest.mark.parametrize("what", ["a full queue", "a call"])
def test_it_does_not_wait_for_the_tap_that_started_it(what: str) -> None:
    """The queue of its device runs that tap, and while two threads run the program, no handler knows whose it is."""
    assert run_program(HELD_UP, what, timeout=120, devices=8).check().lines == ["done"]
