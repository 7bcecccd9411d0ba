"""H12, H13: finalizers that the garbage collector runs in the thread that runs taps, between two of them."""

from __future__ import annotations

import pytest
from support.sessions import rounds
from support.subprocesses import run_program

PROGRAM = """
import gc
if sys.version_info < (3, 12):
    # There jaxlib's recording of tracebacks corrupts the heap when a finalizer runs programs, without hostcb as well.
    from jax._src.lib import _jax
    _jax.set_tracebacks_enabled(False)
call = jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=x))
actions = {
    "barrier": hcb.barrier_wait,
    "stop": hcb.stop_outfeed_receiver,
    "call": lambda: call(1.0),
    "full": lambda: hcb.debug.callback(lambda v: None, one),
}
action, one, beside, over = actions[sys.argv[1]], jnp.float32(1), 0, False
if sys.argv[1] == "full":
    jax.config.update("jax_host_callback_max_queue_byte_size", 64)

class Logger:
    def __init__(self):
        self.me = self

    def __del__(self):
        global beside
        if over:
            return
        try:
            action()
        except RuntimeError as error:
            assert "from inside a callback" in str(error)
        beside += threading.current_thread().name.startswith("hostcb-")

tap = jax.jit(lambda x: hcb.id_tap(lambda v, t: Logger(), x))
tap(one), call(1.0), hcb.debug.callback(lambda v: None, one), hcb.barrier_wait()
gc.set_threshold(50, 3, 3)
deadline = time.monotonic() + 30
# Chance says which thread collects, so the clock ends the loop only after a few finalizers in the right one.
while beside < int(sys.argv[2]) and (beside < int(sys.argv[3]) or time.monotonic() < deadline):
    tap(one)
gc.set_threshold(100_000)
hcb.barrier_wait()
over = True
print(json.dumps(beside))
"""


@pytest.mark.contract("H13")
@pytest.mark.parametrize("action", ["barrier", "stop", "call", "full"])
def test_a_finalizer_in_the_thread_that_runs_taps(action: str) -> None:
    wanted, needed = rounds(50, 150), 5
    assert run_program(PROGRAM, action, str(wanted), str(needed), devices=1, timeout=240).json() >= needed


@pytest.mark.contract("H13")
def test_a_finalizer_in_a_thread_that_another_one_starts_must_not_wait_for_it() -> None:
    """The other one waits in the middle of a dispatch until the thread has said that it runs."""
    source = """
says, seen = threading.Event.set, []

def finalize():
    for wait in (hcb.barrier_wait, hcb.stop_outfeed_receiver):
        try:
            wait()
        except RuntimeError as error:
            seen.append("from inside a callback" in str(error))

def set_after_a_finalizer(self):
    if "_bootstrap_inner" in sys._getframe(1).f_code.co_name and starts_tap:
        finalize()
    says(self)

starts_tap, tap = False, jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))
tap(1.0), hcb.barrier_wait(), hcb.stop_outfeed_receiver()
threading.Event.set = set_after_a_finalizer
starts_tap = True
tap(2.0)
starts_tap = False
hcb.barrier_wait()
print(seen)
"""
    assert run_program(source, devices=1, timeout=60).check().lines == ["[True, True]"]


@pytest.mark.contract("H17")
def test_a_finalizer_in_the_thread_that_runs_taps_is_refused_at_exit_and_the_thread_ends() -> None:
    source = """
from hostcb._runtime.executions.executions import tracker
call, tapped = jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=x)), threading.Event()
call(1.0)

def at_each_line(frame, event, arg):
    # As a finalizer, which may come at any line.
    if tracker.closed:
        sys.setprofile(None)
        try:
            call(2.0)
        except RuntimeError:
            print("refused", flush=True)

def tap(value, transforms):
    sys.setprofile(at_each_line)
    tapped.set()

jax.jit(lambda x: hcb.id_tap(tap, x))(1.0)
tapped.wait()
# So that there are threads beside this one, for which the exit closes what is started.
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    assert run_program(source, devices=1, timeout=60).check().lines == ["refused"]
