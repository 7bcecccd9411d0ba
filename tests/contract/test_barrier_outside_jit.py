"""H13, H17, H30: barriers of other threads wait for callbacks outside jit that keep no order; the exit does not."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H13", "H17", "H30")

HELD = """
begun, go = threading.Event(), threading.Event()

def held(_):
    begun.set()
    go.wait(100)

thread = threading.Thread(target=lambda: CALL, daemon=True)
thread.start()
begun.wait()
"""

IO = "hcb.io_callback(held, None, 1.0)"


@pytest.mark.parametrize("call", [IO, "hcb.debug.callback(held, 1.0)"])
def test_a_timeout_lists_it_and_the_next_barrier_waits_for_it(call: str) -> None:
    source = """
try:
    hcb.barrier_wait(timeout=0.05)
except hcb.BarrierTimeoutError as error:
    print([(each.state, each.count, "held" in each.name) for each in error.outstanding])
hcb.stop_outfeed_receiver()
print("stopped")
threading.Timer(0.2, go.set).start()
hcb.barrier_wait()
print(go.is_set())
thread.join()
"""
    ended = run_program(HELD.replace("CALL", call) + source, devices=1, timeout=60).check()
    assert ended.lines == ["[('is being dispatched', 1, True)]", "stopped", "True"]


def test_a_barrier_that_is_interrupted_to_fork_goes_on_in_the_child() -> None:
    source = """
import signal

def fork(*_):
    global child
    child = os.fork()

signal.signal(signal.SIGALRM, fork)
signal.setitimer(signal.ITIMER_REAL, 0.3)
threading.Timer(0.6, go.set).start()
hcb.barrier_wait()
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
# The exit would end it in the middle of jaxlib.
thread.join()
"""
    ended = run_program(HELD.replace("CALL", IO) + source, devices=1, timeout=60, warnings="ignore").check()
    assert ended.lines == ["7"]


@pytest.mark.parametrize("before", ["", "hcb.install()\n"], ids=["as it is", "installed"])
def test_the_exit_does_not_wait_for_a_daemon_thread_in_it(before: str) -> None:
    """As JAX's exit does not wait for its own."""
    call = "jax.debug.callback(held, 1.0)" if before else IO
    source = before + HELD.replace("CALL", call) + 'print("at the end")'
    assert run_program(source, devices=1, timeout=60).check().lines == ["at the end"]


def test_nor_if_pure_callbacks_have_run_on_several_devices() -> None:
    """The exit waits for these, since JAX does not say when they end."""
    source = """
from hostcb._runtime import exiting
exiting.SECONDS_FOR_DAEMONS = 0.5
mesh = jax.sharding.Mesh(np.array(jax.devices()), "i")
pure = lambda x: hcb.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
split = jax.shard_map(pure, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i"))
print(jax.jit(split)(jnp.zeros(2)))
"""
    ended = run_program(source + HELD.replace("CALL", IO), devices=2, timeout=60)
    assert ended.check().lines == ["[0. 0.]"]


def test_the_exit_does_not_wait_for_a_barrier_that_gave_up_either() -> None:
    source = """
try:
    hcb.barrier_wait(timeout=0.05)
except TimeoutError:
    print("gave up")
"""
    assert run_program(HELD.replace("CALL", IO) + source, devices=1, timeout=60).check().lines == ["gave up"]


def test_a_tap_that_waits_for_room_is_one_that_has_started() -> None:
    source = """
jax.config.update("jax_host_callback_max_queue_byte_size", 4)
begun, go, seen = threading.Event(), threading.Event(), []

def held(*_):
    begun.set()
    go.wait(100)

def late(value, _):
    seen.append(float(value))

hcb.id_tap(held, jnp.float32(1))
begun.wait()
thread = threading.Thread(target=lambda: hcb.id_tap(late, jnp.float32(2)), daemon=True)
thread.start()
waiting = []
while not any("late" in name for name in waiting):
    try:
        hcb.barrier_wait(timeout=0.05)
    except hcb.BarrierTimeoutError as error:
        waiting = [each.name for each in error.outstanding]
threading.Timer(0.2, go.set).start()
hcb.barrier_wait()
print(seen)
"""
    assert run_program(source, devices=1, timeout=60).check().lines == ["[2.0]"]
