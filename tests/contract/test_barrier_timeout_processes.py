"""H30: barriers with a timeout in finalizers and signal handlers, at exit and in a forked child, each in a process."""

from __future__ import annotations

import pytest
from support.helpers import DEADLINE
from support.subprocesses import PRELUDE, run_program

pytestmark = pytest.mark.contract("H30")


def test_a_finalizer_in_the_consumer_may_wait_with_a_timeout() -> None:
    """It holds the consumer up, so another thread has to run what it waits for."""
    source = f"""
from hostcb._runtime.queue.device_queue import DeviceQueue
from hostcb._runtime.queue.queues import queues
told = threading.Event()
raised = []
plain = DeviceQueue.tell
ran = []
def tell(self):
    plain(self)
    # As a finalizer would, in the consumer between two functions.
    if threading.current_thread().name.startswith("hostcb-") and ran == ["first"]:
        ran.append("finalizer")
        hcb.id_tap(lambda v, t: ran.append("second"), 1.0)
        hcb.barrier_wait(timeout={DEADLINE})
        ran.append("waited")
        told.set()
DeviceQueue.tell = tell
hcb.id_tap(lambda v, t: ran.append("first"), 1.0)
queues[jax.devices()[0]].consumer.wake()
hcb.barrier_wait()
queues[jax.devices()[0]].tell()
hcb.stop_outfeed_receiver()
assert told.wait({DEADLINE})
print(json.dumps(ran))
"""
    assert run_program(source).json() == ["first", "finalizer", "second", "waited"]


def test_a_program_that_its_own_signal_handler_interrupts_is_not_waited_for() -> None:
    """As by a barrier without a timeout, which waits for everything but this program (H13)."""
    source = f"""
import signal
reached = []
def handler(number, frame):
    hcb.barrier_wait(timeout={DEADLINE})
    reached.append(True)
signal.signal(signal.SIGUSR1, handler)
from hostcb._runtime.executions import executions
plain = executions.ExecutionTracker.tokens_in
def tokens_in(self, execution):
    if not reached:
        os.kill(os.getpid(), signal.SIGUSR1)
    return plain(self, execution)
executions.ExecutionTracker.tokens_in = tokens_in
began = time.monotonic()
jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))(1.0)
hcb.barrier_wait()
print(json.dumps([reached, time.monotonic() - began < {DEADLINE}]))
"""
    assert run_program(source).json() == [[True], True]


def test_at_exit_where_python_starts_no_threads() -> None:
    source = f"""
import atexit
gate = threading.Event()
def called(v):
    gate.wait({DEADLINE})
    return v
program = jax.jit(lambda x: hcb.call(called, x, result_shape=x))
thread = threading.Thread(target=program, args=(np.float32(1),), daemon=True)
def first():
    try:
        hcb.barrier_wait("exit", timeout=0.05)
    except hcb.BarrierTimeoutError as error:
        print("timeout", [each.count for each in error.outstanding])
    gate.set()
    hcb.barrier_wait("exit", timeout={DEADLINE})
    # Python ends a daemon thread in the middle of jaxlib, which may abort.
    thread.join()
    print("done")
atexit.register(first)
thread.start()
from hostcb._runtime.executions.executions import tracker
while not tracker.live():
    time.sleep(0.001)
"""
    assert run_program(source).check().lines == ["timeout [1]", "done"]


def test_a_thread_that_waits_for_a_barrier_that_gave_up_ends_before_the_interpreter() -> None:
    """Python ends daemon threads in the middle of C++ code, and then jaxlib may abort."""
    first = "import atexit\natexit.register(lambda: print([each.name for each in threading.enumerate()]))\n"
    source = f"""
from hostcb._threads.deadlines import Waiter
class Slow:
    def wait(self):
        assert gate.wait({DEADLINE})
gate, plain = threading.Event(), Waiter.join
def join(waiter, *others):
    # So late that without it the thread would not have ended.
    gate.set()
    plain(waiter, *others)
Waiter.join = join
waiter = Waiter(Slow())
"""
    assert run_program(source, prelude=first + PRELUDE).check().lines == ["['MainThread']"]
