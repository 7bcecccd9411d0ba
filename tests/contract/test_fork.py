"""H17: a child process runs none of its parent's callbacks, waits for none of them, and comes to its end."""

from __future__ import annotations

import os

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H17")

FORKS = """
import warnings
warnings.simplefilter("ignore")
parent, gate, children = os.getpid(), threading.Event(), []

def say(*words):
    # In one write, since several processes do.
    os.write(1, (" ".join(map(str, words)) + (" in the parent\\n" if os.getpid() == parent else " CHILD\\n")).encode())

def tapped(value, transforms):
    gate.wait()
    say("tap", int(value))

def forks(*_):
    child = os.fork()
    if child:
        children.append(child)
    return np.int32(child != 0)

def forked(does):
    if not (child := os.fork()):
        does()
        sys.exit()
    children.append(child)

def joined():
    gate.set()
    hcb.barrier_wait()
    for child in children:
        deadline = time.monotonic() + 20
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, 9)
                say("the child hangs")
                break
            time.sleep(0.01)
        else:
            say("status", ended[1])
    children.clear()
    gate.clear()

tap = jax.jit(lambda x: hcb.id_tap(tapped, x))
call = jax.jit(lambda x: hcb.call(forks, x, result_shape=jax.ShapeDtypeStruct((), np.int32)))
fork_in_tap = jax.jit(lambda x: hcb.id_tap(forks, x))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_leaves_its_parents_taps() -> None:
    ended = run_program(
        FORKS
        + """
tap(1), tap(2)
forked(lambda: None)
forked(lambda: (hcb.barrier_wait(), jax.effects_barrier(), hcb.stop_outfeed_receiver(), say("waited")))
forked(lambda: (gate.set(), tap(3), hcb.barrier_wait(), say("waited")))
forked(lambda: (gate.set(), tap(4)))
forker = threading.Thread(target=lambda: forked(lambda: (hcb.barrier_wait(), say("waited"), os._exit(0))))
forker.start(), forker.join()
joined()
""",
        devices=2,
        timeout=90,
    ).check()
    assert sorted(ended.lines) == sorted(
        ["tap 1 in the parent", "tap 2 in the parent", "tap 3 CHILD", "tap 4 CHILD"]
        + ["waited CHILD"] * 3
        + ["status 0 in the parent"] * 5
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_that_a_callback_forked_leaves_its_parents_taps() -> None:
    """The function may return in the child, to the thread that would go on with the queue."""
    ended = run_program(
        FORKS
        + """
# In the consumer.
fork_in_tap(0), tap(1), tap(2)
joined()
# In a call, after what was queued.
gate.set()
if not call(0):
    tap(3), hcb.barrier_wait()
    sys.exit()
joined()
# In the thread that finds the queue full.
jax.config.update("jax_host_callback_max_queue_byte_size", 8)
gate.set()
fork_in_tap(0), tap(4), tap(5), tap(6)
if os.getpid() != parent:
    hcb.barrier_wait()
    say("waited")
    sys.exit()
joined()
""",
        devices=1,
        timeout=90,
    ).check()
    lines = ended.lines
    assert [line for line in lines if line.startswith("tap") and "parent" in line] == [
        f"tap {number} in the parent" for number in (1, 2, 4, 5, 6)
    ]
    assert lines.count("tap 3 CHILD") == 1
    assert [line for line in lines if line.startswith(("status", "the"))] == ["status 0 in the parent"] * 3
    # In the last part it is the consumer or the main thread that forks, and then runs the child's own taps alone.
    assert not {"tap 1 CHILD", "tap 2 CHILD"} & set(lines)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.contract("H30")
def test_a_barrier_with_a_timeout_that_goes_on_in_a_child_waits_for_nothing() -> None:
    """A signal handler forks in the middle of it. The thread that waits for the execution stays in the parent."""
    ended = run_program(
        FORKS
        + """
import signal
from hostcb._threads import deadlines
began = threading.Event()

def held(value):
    began.set(), gate.wait()
    return value

slow = jax.jit(lambda x: hcb.call(held, x, result_shape=x))
threading.Thread(target=lambda: slow(np.float32(1))).start()
began.wait()
signal.signal(signal.SIGUSR1, lambda *_: forks() and gate.set())

def interrupts():
    # Until the barrier waits for the thread.
    while not any(waiter._waiting for waiter in list(deadlines._waiters)):
        pass
    os.kill(parent, signal.SIGUSR1)

threading.Thread(target=interrupts).start()
hcb.barrier_wait(timeout=3600)
say("waited")
if os.getpid() != parent:
    os._exit(0)
joined()
""",
        devices=1,
        timeout=90,
    ).check()
    assert sorted(ended.lines) == ["status 0 in the parent", "waited CHILD", "waited in the parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_reports_none_of_its_parents_failures() -> None:
    ended = run_program(
        FORKS
        + """
jax.jit(lambda x: hcb.id_tap(lambda v, t: 1 / 0, x))(1)
jax.effects_barrier()
forked(lambda: (hcb.barrier_wait(), say("waited")))
try:
    joined()
except hcb.CallbackException:
    say("reported")
joined()
""",
        devices=1,
        timeout=60,
    ).check()
    assert sorted(ended.lines) == ["reported in the parent", "status 0 in the parent", "waited CHILD"]


@pytest.mark.contract("H17", "H22", "H29")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_traces_and_statistics_of_a_child_are_its_own() -> None:
    """A child that leaves the block of a trace does not end that of its parent, which goes on."""
    ended = run_program(
        FORKS
        + """
import json, tempfile
path = os.path.join(tempfile.mkdtemp(), "trace.json")
counted = lambda: sum(device.taps_run for device in hcb.stats().devices.values())

def child():
    before = counted()
    tap(8), hcb.barrier_wait()
    say("counted", before, counted())

gate.set()
before = counted()
try:
    with hcb.trace(path):
        tap(1), hcb.barrier_wait()
        forked(child)
        joined()
        gate.set()
        tap(2), hcb.barrier_wait()
finally:
    if os.getpid() != parent:
        os._exit(0)
runs = [event["pid"] == parent for event in json.loads(open(path).read()) if event.get("cat") == "id_tap"]
say("runs", *runs, "counted", counted() - before)
""",
        devices=1,
        timeout=90,
    ).check()
    assert sorted(ended.lines) == sorted(
        [
            *("tap 1 in the parent", "tap 8 CHILD", "counted 0 1 CHILD", "status 0 in the parent"),
            *("tap 2 in the parent", "runs True True counted 2 in the parent"),
        ]
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_large_values_that_a_child_taps_are_whole_and_in_order() -> None:
    """They have memory of their own, of which the child has what its parent had ready."""
    ended = run_program(
        FORKS
        + """
gate.set()
# No thread of the runtime is in the child, to move what is large.
operands = [jax.block_until_ready(jnp.full(1 << 19, number, np.float32)) for number in range(4)]
seen = []
program = jax.jit(lambda x: hcb.id_tap(lambda a, t: seen.append((float(a[0]), bool((a == a[0]).all()))), x)[0])

def taps():
    seen.clear()
    for operand in operands:
        program(operand)
    hcb.barrier_wait()
    say(seen == [(float(number), True) for number in range(4)])

taps(), taps(), forked(taps), joined(), taps()
""",
        devices=1,
        timeout=90,
    ).check()
    assert sorted(ended.lines) == ["True CHILD", *["True in the parent"] * 3, "status 0 in the parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.contract("H13", "H30")
@pytest.mark.parametrize(("kind", "timeout"), [("tap", None), ("tap", 60.0), ("pmap of calls", 60.0)])
def test_a_barrier_that_a_signal_handler_interrupts_to_fork_waits_in_the_parent_alone(
    kind: str, timeout: float | None
) -> None:
    ended = run_program(
        FORKS
        + f"""
import signal
TAP = jax.jit(lambda x: hcb.id_tap(lambda a, t: held(a), x))
CALLS = jax.pmap(lambda x: hcb.call(held, x, result_shape=x))

def held(value):
    gate.wait()
    say("ran")
    return value

signal.signal(signal.SIGALRM, lambda *_: forks())
result = {"TAP" if kind == "tap" else "CALLS"}(np.ones(2, np.float32))
signal.setitimer(signal.ITIMER_REAL, 0.3)

def opens():
    # The child's barrier has nothing to wait for, and returns while the callbacks of the parent are held.
    while not children:
        time.sleep(0.01)
    deadline = time.monotonic() + 20
    while not (ended := os.waitpid(children[0], os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(children[0], 9)
    say("status", os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs")
    gate.set()

thread = threading.Thread(target=opens)
thread.start()
hcb.barrier_wait(timeout={timeout})
say("waited")
if os.getpid() != parent:
    os._exit(0)
thread.join()
""",
        devices=2,
        timeout=90,
    ).check()
    runs = ["ran in the parent"] * (1 if kind == "tap" else 2)
    assert ended.lines == ["waited CHILD", "status 0 in the parent", *runs, "waited in the parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.contract("H13")
def test_barriers_of_a_child_wait_for_no_program_of_its_parent() -> None:
    ended = run_program(
        FORKS
        + """
held = lambda value: (gate.wait(), value)[1]
result = jax.pmap(lambda x: hcb.call(held, x, result_shape=x))(np.arange(2, dtype=np.float32))
forked(lambda: (hcb.barrier_wait(), jax.effects_barrier(), say("waited"), os._exit(0)))
while not (ended := os.waitpid(children[0], os.WNOHANG))[0]:
    time.sleep(0.01)
children.clear()
joined()
say(ended[1], *map(float, result))
""",
        devices=2,
        timeout=60,
    ).check()
    assert ended.lines == ["waited CHILD", "0 0.0 1.0 in the parent"]
