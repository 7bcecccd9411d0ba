"""H12, H13: finalizers that the garbage collector runs in the thread that runs taps, between two of them."""

from __future__ import annotations

import pytest
from sessions import rounds
from subprocesses import run_program

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
