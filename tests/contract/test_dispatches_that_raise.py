"""H5, H13, H18: a dispatch that JAX refuses after its begin is over, whatever its thread does next."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import DEADLINE
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._runtime.dispatch.programs import Execution
from hostcb._runtime.executions.executions import ExecutionTracker, tracker
from hostcb._threads.running import running

Step = Callable[[Any, Any], Any]


def one(value: float) -> jax.Array:
    return jnp.full(8, value, np.float32)


def sharded(value: float) -> jax.Array:
    return jax.device_put(one(value), NamedSharding(Mesh(np.array(jax.devices()), "d"), P("d")))


CALLBACKS: dict[str, Callable[[Any], Any]] = {
    "tap": lambda x: hcb.id_tap(lambda *_: None, x),
    "ordered call": lambda x: hcb.call(lambda v: v, x, result_shape=x),
    # JAX dispatches it in Python.
    "unordered": lambda x: (hcb.debug.callback(lambda _: None, x), x)[1],
}
VALUES = {"one device": one, "mesh": sharded}


def refused(callback: Callable[[Any], Any], value: Callable[[float], Any]) -> tuple[Step, Any, Any]:
    """A step, and two operands that it refuses."""
    step = jax.jit(lambda x, y: (callback(x + y), y * 2), donate_argnums=(0, 1))
    for _ in range(4):
        jax.block_until_ready(step(value(1), value(2)))
    hcb.barrier_wait()
    operand = value(3)
    if value is one:
        # The same array is donated twice.
        return step, operand, operand
    # That ends the process on several devices with JAX 0.10.2, so there the other one has been donated before.
    gone = value(4)
    gone.delete()
    return step, operand, gone


# The errors of a fast dispatch, of a dispatch in Python, and of an array that has been deleted.
REFUSED = (ValueError, RuntimeError)


def raises(step: Step, *operands: Any) -> None:
    with pytest.raises(REFUSED):
        step(*operands)


@pytest.mark.contract("H13")
@pytest.mark.parametrize("where", VALUES)
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_barrier_does_not_wait_for_a_thread_whose_dispatch_raised(name: str, where: str) -> None:
    """The thread's next job, from the same instruction of the same frame, is an ordinary function."""
    step, *wrong = refused(CALLBACKS[name], VALUES[where])
    started, goes_on = threading.Event(), threading.Event()

    def ordinary() -> None:
        started.set()
        goes_on.wait()

    def worker() -> None:
        for job in (
            functools.partial(raises, step, *wrong),
            functools.partial(step, *wrong),
            functools.partial(ordinary),
        ):
            with contextlib.suppress(*REFUSED):
                job()

    threads = [threading.Thread(target=worker, daemon=True)]
    threads[0].start()
    assert started.wait(DEADLINE)
    threads.append(threading.Thread(target=hcb.barrier_wait, daemon=True))
    threads[1].start()
    threads[1].join(DEADLINE)
    returned = not threads[1].is_alive()
    goes_on.set()
    threads[0].join(DEADLINE)
    assert returned and tracker.live() == []


@pytest.mark.contract("H13", "H18")
@pytest.mark.parametrize("where", VALUES)
@pytest.mark.parametrize("name", CALLBACKS)
def test_dispatches_that_raised_leave_nothing(name: str, where: str) -> None:
    """Neither in threads that go on nor in threads that ended, and with their errors kept: before any barrier."""
    step, *wrong = refused(CALLBACKS[name], VALUES[where])
    errors: list[BaseException] = []
    goes_on = threading.Event()

    def request(lives_on: bool) -> None:
        try:
            step(*wrong)
        except REFUSED as error:
            errors.append(error)
            failed.release()
        if lives_on:
            goes_on.wait()

    def executions() -> int:
        gc.collect()
        return sum(type(each) is Execution for each in gc.get_objects())

    others = executions()
    failed = threading.Semaphore(0)
    threads = [threading.Thread(target=request, args=(number % 2 == 0,), daemon=True) for number in range(30)]
    for thread in threads:
        thread.start()
        assert failed.acquire(timeout=DEADLINE)
    for thread in threads[1::2]:
        thread.join(DEADLINE)
    for _ in range(30):
        request(False)
    jax.block_until_ready(step(VALUES[where](1), VALUES[where](2)))
    # What may have begun to run on several devices is one thing for each set of devices.
    assert len(tracker.live()) <= 2 and running.frame.execution is None
    came = len(errors)
    # Of a dispatch in Python the traceback has its frames.
    errors.clear()
    left = executions() - others
    goes_on.set()
    for thread in threads:
        thread.join(DEADLINE)
    # Each thread that lives has the last one of its own.
    assert came == 60 and left <= len(threads[::2]) + 2
    hcb.barrier_wait()
    assert tracker.live() == []


@pytest.mark.contract("H5", "H13")
def test_a_dispatch_inside_of_another_that_raises_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer or a signal handler dispatches the same program in the middle of its dispatch."""
    step, *wrong = refused(CALLBACKS["tap"], one)
    plain, around = ExecutionTracker._wait_for_earlier, []

    def interrupted(self: ExecutionTracker, execution: Execution) -> None:
        if not around:
            around.append(execution)
            raises(step, *wrong)
            assert self.current() is execution and not execution.dispatch.has_ended()
        plain(self, execution)

    monkeypatch.setattr(ExecutionTracker, "_wait_for_earlier", interrupted)
    jax.block_until_ready(step(one(1), one(2)))
    assert around[0].dispatch.has_ended() and around[0].tokens and running.frame.execution is None
    hcb.barrier_wait()


REFUSALS: dict[str, Callable[[], Any]] = {}


def refusal(make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]) -> Any:
    REFUSALS[make.__name__] = make
    return make


def tapped(**options: Any) -> Any:
    return jax.jit(lambda x, y: CALLBACKS["tap"](x) + y, **options)


@refusal
def of_a_deleted_array() -> Any:
    step, gone = tapped(), one(1)
    gone.delete()
    return lambda: step(one(1), one(2)), lambda: step(one(1), gone)


@refusal
def of_a_donated_array() -> Any:
    step, gone = tapped(donate_argnums=0), one(1)
    step(gone, one(1))
    return lambda: step(one(1), one(2)), lambda: step(gone, one(2))


@refusal
def by_a_transfer_guard() -> Any:
    step, operand = tapped(), np.ones(8, np.float32)

    def guarded() -> Any:
        with jax.transfer_guard("disallow"):
            return step(operand, operand)

    return lambda: step(operand, operand), guarded


@refusal
def of_another_device() -> Any:
    step, there = tapped(), jax.device_put(one(1), jax.devices()[1])
    return lambda: step(one(1), one(2)), lambda: step(jax.device_put(one(1), jax.devices()[0]), there)


@pytest.mark.contract("H13")
@pytest.mark.parametrize("name", REFUSALS)
def test_whatever_jax_refuses_leaves_nothing(name: str) -> None:
    right, wrong = REFUSALS[name]()
    for _ in range(4):
        jax.block_until_ready(right())
    errors = []
    for _ in range(3):
        try:
            wrong()
        except Exception as error:
            errors.append(error)
    assert len(errors) == 3
    waiter = threading.Thread(target=hcb.barrier_wait, daemon=True)
    waiter.start()
    waiter.join(DEADLINE)
    assert not waiter.is_alive() and tracker.live() == []
    jax.block_until_ready(right())


INTERRUPTED = """
import threading

class Interrupt(BaseException):
    pass

seen = []
kind, many = sys.argv[1], int(sys.argv[2])
if kind == "tap":
    body = lambda x: hcb.id_tap(lambda v, t: seen.append(float(v[0])), x) + 1
else:
    body = lambda x: (hcb.debug.callback(lambda v: seen.append(float(v[0])), x), x + 1)[1]
program = jax.jit(body)
x = jnp.zeros(8)
if many > 1:
    x = jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()), "d"), P("d")))
for _ in range(3):
    program(x)
hcb.barrier_wait()

# An interrupt at each line of the modules around a dispatch, one at a time, as under a debugger.
AROUND = ("dispatch.py", "dispatches.py", "executions.py", "programs.py", "fast_dispatch.py", "running.py")

class Moments:
    def __init__(self, at):
        self.at, self.count = at, 0

    def __call__(self, frame, event, returned):
        # What a function returns lives as long as this variable has it.
        returned = None
        if not frame.f_code.co_filename.endswith(AROUND) or "hostcb" not in frame.f_code.co_filename:
            return None
        if event in ("line", "return", "exception"):
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                raise Interrupt(event)
        return self

at, kept = 0, []
while True:
    at += int(sys.argv[3])
    moments = Moments(at)
    sys.settrace(moments)
    try:
        program(x)
    except BaseException as error:
        # With its traceback, as a service keeps them.
        kept.append(error)
    finally:
        sys.settrace(None)
    if moments.count < at:
        break
    waits = lambda: (hcb.barrier_wait(), jax.block_until_ready(program(x)), hcb.barrier_wait())
    waiter = threading.Thread(target=waits, daemon=True)
    waiter.start()
    waiter.join(20)
    if waiter.is_alive():
        traceback.print_exception(kept[-1])
        os._exit(1)
    jax.block_until_ready(program(x))
hcb.barrier_wait()
from hostcb._runtime.executions.executions import tracker
print(json.dumps([at, len(kept), [str(each) for each in tracker.live()]]), flush=True)
"""


@pytest.mark.contract("H13")
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["tap", "unordered"])
def test_an_interrupt_at_any_line_around_a_dispatch_leaves_nothing(kind: str, devices: int) -> None:
    step = 1 if (kind, devices) == ("tap", 1) else 7
    ended = run_program(INTERRUPTED, kind, str(devices), str(step), devices=devices, timeout=300)
    moments, interrupted, left = ended.json()
    assert moments > 50 and interrupted * step > 40 and left == [], str(ended)
