"""H30: a barrier with a timeout says what has not ended, by name and device, and loses nothing."""

from __future__ import annotations

import copy
import fractions
import gc
import logging
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from support import helpers
from support.helpers import DEADLINE

import hostcb as hcb
from hostcb._runtime.executions.executions import tracker
from hostcb._runtime.queue import rings
from hostcb._runtime.queue.queues import queues
from hostcb._threads import deadlines

pytestmark = pytest.mark.contract("H30")

X = np.arange(8, dtype=np.float32)
# Long enough that a test would fail if a barrier waited for it, and not for what it should.
SHORT = 0.02


class Gate:
    """A function that tells that it has begun, and goes on when it may."""

    def __init__(self, fails: bool = False) -> None:
        self.began, self.may_end, self.fails = threading.Event(), threading.Event(), fails

    def wait(self) -> None:
        self.began.set()
        assert self.may_end.wait(DEADLINE)
        if self.fails:
            raise ValueError("behind the gate")

    def tapped(self, *_: Any) -> None:
        self.wait()

    write = filled = tapped

    def flush(self) -> None: ...

    def called(self, value: Any) -> Any:
        self.wait()
        return value


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    # Whatever fails, what is stuck ends.
    made.may_end.set()
    hcb.barrier_wait()


def outstanding(name: str | None = None, timeout: float = SHORT) -> list[tuple[str, str, int]]:
    with pytest.raises(hcb.BarrierTimeoutError) as raised:
        hcb.barrier_wait(name, timeout=timeout)
    return [(each.name, each.state, each.count) for each in raised.value.outstanding]


def started(function: Any) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def nothing(value: Any, transforms: Any) -> None:
    pass


def test_the_tap_that_hangs_and_those_behind_it_are_named_with_their_device(gate: Gate) -> None:
    program = jax.jit(lambda x: hcb.id_tap(gate.tapped, x))
    behind = jax.jit(lambda x: hcb.id_tap(nothing, x))
    program(1.0)
    assert gate.began.wait(DEADLINE)
    for number in range(3):
        behind(float(number))
    with pytest.raises(hcb.BarrierTimeoutError) as raised:
        hcb.barrier_wait("step 7", timeout=SHORT)
    text = str(raised.value)
    device = jax.devices()[0]
    assert text.startswith("barrier_wait[step 7]: the callbacks have not all run within 0.02 s. Outstanding: ")
    assert [(each.state, each.devices, each.count) for each in raised.value.outstanding] == [
        ("runs", (device,), 1),
        ("waits", (device,), 3),
    ]
    first, second = raised.value.outstanding
    assert first.name.startswith("id_tap: ") and "Gate.tapped" in first.name
    assert second.name.startswith("id_tap: ") and "nothing (" in second.name
    assert f"{first.name}, running on {device}; 3 x {second.name}, waiting on {device}" in text
    gate.may_end.set()
    hcb.barrier_wait(timeout=DEADLINE)


def test_it_is_a_timeout_error_that_can_be_copied_and_pickled(gate: Gate) -> None:
    hcb.id_tap(gate.tapped, 1.0)
    with pytest.raises(TimeoutError) as raised:
        hcb.barrier_wait(timeout=SHORT)
    for again in (copy.copy(raised.value), pickle.loads(pickle.dumps(raised.value))):
        assert isinstance(again, hcb.BarrierTimeoutError) and str(again) == str(raised.value)
        (one,) = again.outstanding
        assert (one.state, one.count, *map(str, one.devices)) == ("runs", 1, str(jax.devices()[0]))


@pytest.mark.parametrize("through_c", [True, False], ids=["c", "python"])
def test_values_of_the_ring_and_of_python_are_both_named(
    gate: Gate, through_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not through_c:
        monkeypatch.setattr("hostcb._lowering.views.library.is_ready", lambda: False)
    program = jax.jit(lambda x: hcb.id_tap(nothing, x))
    program(1.0)
    hcb.barrier_wait()
    hcb.id_tap(gate.tapped, 1.0)
    assert gate.began.wait(DEADLINE)
    program(2.0)
    program(3.0)
    found = outstanding()
    assert sorted((state, count) for _, state, count in found) == [("runs", 1), ("waits", 2)]
    assert ["Gate.tapped" in name for name, state, _ in found if state == "runs"] == [True]


def test_all_that_wait_are_counted_also_more_than_are_read_at_once(gate: Gate) -> None:
    program = jax.jit(lambda x: hcb.id_tap(nothing, x))
    helpers.finish(program(0.0))
    hcb.id_tap(gate.tapped, 1.0)
    assert gate.began.wait(DEADLINE)
    waiting = 2 * rings.MOST_READ + 3
    for _ in range(waiting):
        program(1.0)
    with pytest.raises(hcb.BarrierTimeoutError) as raised:
        hcb.barrier_wait(timeout=SHORT)
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        counts = {
            state: sum(each.count for each in error.outstanding if each.state == state) for state in ("runs", "waits")
        }
        assert counts == {"runs": 1, "waits": waiting}


def test_each_callback_of_a_program_that_hangs_is_named(gate: Gate) -> None:
    def program(x):
        return hcb.call(gate.called, hcb.call(np.abs, x, result_shape=x), result_shape=x)

    for run, names in ((jax.jit(program), ("Gate.called", "absolute")), (program, ("Gate.called",))):
        gate.began.clear(), gate.may_end.clear()
        thread = started(lambda run=run: run(X))
        assert gate.began.wait(DEADLINE)
        found = str(outstanding())
        assert all(name in found for name in names), found
        gate.may_end.set()
        thread.join(DEADLINE)
        hcb.barrier_wait(timeout=DEADLINE)


KINDS: dict[str, Callable[[Gate, Any], Any]] = {
    "id_tap": lambda gate, x: hcb.id_tap(gate.tapped, x),
    "id_print": lambda gate, x: hcb.id_print(x),
    "call": lambda gate, x: hcb.call(gate.called, x, result_shape=x),
    "pure_callback": lambda gate, x: hcb.pure_callback(gate.called, helpers.like(x), x),
    "io_callback": lambda gate, x: hcb.io_callback(gate.called, helpers.like(x), x),
    "io_callback, ordered": lambda gate, x: hcb.io_callback(gate.called, helpers.like(x), x, ordered=True),
    "debug.callback": lambda gate, x: hcb.debug.callback(gate.called, x),
    "debug.callback, ordered": lambda gate, x: hcb.debug.callback(gate.called, x, ordered=True),
    "debug.print": lambda gate, x: hcb.debug.print("{}", x),
    "buffer_callback": lambda gate, x: hcb.buffer_callback(gate.filled, helpers.like(x), has_side_effect=True)(x),
    "dlpack_callback": lambda gate, x: hcb.dlpack_callback(gate.called, helpers.like(x), has_side_effect=True)(x),
}
IN_LAYOUTS = [
    *((kind, helpers.JIT) for kind in KINDS),
    *(("call", layout) for layout in helpers.MAIN_LAYOUTS if layout is not helpers.JIT),
    ("io_callback", helpers.PMAP),
]


@pytest.mark.parametrize(("kind", "layout"), IN_LAYOUTS, ids=lambda value: getattr(value, "name", value))
def test_what_hangs_is_named_by_its_kind_with_its_devices(
    gate: Gate, kind: str, layout: helpers.Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", gate)
    compiled = layout.compile(lambda x: KINDS[kind](gate, x))
    thread = started(lambda: (compiled(layout.same(X)), gc.collect()))
    assert gate.began.wait(DEADLINE)
    with pytest.raises(hcb.BarrierTimeoutError) as raised:
        hcb.barrier_wait(timeout=SHORT)
    (one,) = raised.value.outstanding
    function = kind.partition(",")[0]
    assert one.name.removeprefix("a program with ").startswith(f"{function}: ")
    assert "Gate." in one.name or function.endswith("print")
    assert one.state in ("runs", "is being dispatched")
    assert set(one.devices) == set(jax.devices()[: 1 if layout in (helpers.EAGER, helpers.JIT) else None])
    gate.may_end.set()
    thread.join(DEADLINE)
    hcb.barrier_wait(timeout=DEADLINE)


def test_a_program_that_hangs_in_a_callback_of_jax_is_named(gate: Gate) -> None:
    def program(x):
        hcb.id_tap(nothing, x)
        return jax.pure_callback(gate.called, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    compiled = jax.jit(program)
    thread = started(lambda: jax.block_until_ready(compiled(X)))
    assert gate.began.wait(DEADLINE)
    ((name, _, count),) = [found for found in outstanding() if found[0].startswith("a program")]
    assert "nothing (" in name and count == 1
    gate.may_end.set()
    thread.join(DEADLINE)
    hcb.barrier_wait(timeout=DEADLINE)


def test_a_tap_that_a_full_queue_runs_in_a_thread_of_the_program_holds_no_barrier_up(gate: Gate) -> None:
    """The thread that finds the queue full holds the queue's baton, and the consumer waits for it."""
    program = jax.jit(lambda x: hcb.call(lambda v: v, hcb.id_tap(gate.tapped, x), result_shape=x))
    thread = started(lambda: program(1.0))
    assert gate.began.wait(DEADLINE)
    assert {state for _, state, _ in outstanding()} <= {"runs", "is being dispatched"}
    gate.may_end.set()
    thread.join(DEADLINE)
    hcb.barrier_wait(timeout=DEADLINE)


@pytest.mark.parametrize("timeout", [0, SHORT, np.float32(SHORT)])
def test_a_barrier_that_gave_up_loses_no_failure(timeout: Any) -> None:
    gate = Gate(fails=True)
    hcb.id_tap(lambda value, transforms: 1 / 0, 1.0)
    hcb.id_tap(gate.tapped, 1.0)
    assert gate.began.wait(DEADLINE)
    with pytest.raises(hcb.BarrierTimeoutError):
        hcb.barrier_wait(timeout=timeout)
    gate.may_end.set()
    with pytest.raises(hcb.CallbackException) as raised:
        hcb.barrier_wait(timeout=DEADLINE)
    assert [type(each.exception) for each in raised.value.failures] == [ZeroDivisionError, ValueError]
    hcb.barrier_wait(timeout=0)


def test_barriers_that_give_up_leave_one_thread_and_not_one_each(gate: Gate) -> None:
    thread = started(lambda: jax.jit(lambda x: hcb.call(gate.called, x, result_shape=x))(X))
    assert gate.began.wait(DEADLINE)
    outstanding()
    before = threading.active_count()
    for _ in range(5):
        outstanding(timeout=0)
    # A barrier's own report ends with the barrier, and perhaps a moment later.
    waiting = [each for each in threading.enumerate() if each.name == "hostcb-barrier-wait"]
    assert len(waiting) == 1, f"{threading.active_count()} threads, {before} before"
    gate.may_end.set()
    thread.join(DEADLINE)
    waiting[0].join(DEADLINE)
    assert not waiting[0].is_alive()


def test_functions_run_in_another_thread_than_that_of_a_barrier_with_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the queue has no consumer: it gets one."""
    queue, threads = queues[jax.devices()[0]], []
    hcb.stop_outfeed_receiver()
    monkeypatch.setattr(queue, "_wake", lambda: None)
    hcb.id_tap(lambda value, transforms: threads.append(threading.current_thread()), 1.0)
    assert queue.consumer is None and not threads
    hcb.barrier_wait(timeout=DEADLINE)
    assert len(threads) == 1 and threads[0] is not threading.current_thread()


def test_a_waiter_that_an_interrupt_kept_from_starting_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            deadlines.Waiter(Ends())
    deadlines.join_waiters(deadlines.Deadline(DEADLINE))


class Ends:
    """What ends when it has been waited for so many times."""

    def __init__(self, times: int = 1) -> None:
        self.waiter: Any = None
        self.times = times

    def done(self) -> bool:
        return self.times == 0

    def wait(self) -> None:
        self.times -= 1


def test_a_wait_that_ends_too_early_is_repeated() -> None:
    """As that for a dispatch which another thread takes for one that has raised."""
    what = Ends(times=2)
    assert deadlines.ended_by(what, deadlines.Deadline(DEADLINE))
    assert what.times == 0


def test_an_ended_barrier_reports_what_it_should() -> None:
    assert hcb.barrier_wait(timeout=1) is None
    assert hcb.barrier_wait("name", timeout=math.inf) is None
    assert hcb.barrier_wait(timeout=None) is None
    for timeout in (np.float32(9), np.int64(9), fractions.Fraction(19, 2), 10**400, 0):
        assert hcb.barrier_wait(timeout=timeout) is None  # type: ignore[arg-type]
    record = helpers.Record()
    for number in range(100):
        hcb.id_tap(record.tap, number)
    hcb.barrier_wait(timeout=math.inf)
    assert record.values == [*range(100)]


def test_what_ends_at_the_last_moment_is_no_timeout(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    hcb.id_tap(gate.tapped, 1.0)
    plain = deadlines.Deadline.has_passed

    def passes(self: deadlines.Deadline) -> bool:
        gate.may_end.set()
        helpers.wait_until(lambda: not queues[jax.devices()[0]].is_pending())
        return True

    monkeypatch.setattr(deadlines.Deadline, "has_passed", passes)
    hcb.barrier_wait(timeout=DEADLINE)
    assert not plain(deadlines.Deadline(DEADLINE))


@pytest.mark.parametrize(
    ("timeout", "error", "text"),
    [
        (-1, ValueError, "from 0 on, or None, got -1"),
        (math.nan, ValueError, "got nan"),
        (-(10**400), ValueError, "got -1000"),
        (-math.inf, ValueError, "got -inf"),
        ("1", TypeError, "must be a number of seconds or None, got '1' of <class 'str'>"),
        (True, TypeError, "got True"),
        (1j, TypeError, "got 1j"),
        ([1], TypeError, r"got \[1\]"),
    ],
)
def test_a_timeout_that_is_none_is_refused_at_once(timeout: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=rf"^barrier_wait\[a\]: timeout .*{text}"):
        hcb.barrier_wait("a", timeout=timeout)


def test_from_inside_a_callback_it_is_refused_as_without_a_timeout() -> None:
    hcb.id_tap(lambda value, transforms: hcb.barrier_wait(timeout=1), 1.0)
    with pytest.raises(hcb.CallbackException, match="inside"):
        hcb.barrier_wait(timeout=DEADLINE)


def test_where_jax_does_not_report_executions_a_timeout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "informed", False)
    with pytest.raises(hcb.UnknownJaxError, match=f"{jax.__version__}.*timeout"):
        hcb.barrier_wait(timeout=1)


def test_the_log_has_the_end_of_a_barrier_only_if_it_ended(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    hcb.id_tap(gate.tapped, 1.0)
    hcb.id_tap(nothing, 1.0)
    assert gate.began.wait(DEADLINE)
    with caplog.at_level(logging.DEBUG, "hostcb"):
        outstanding("named")
    texts = [record.getMessage() for record in caplog.records if "named" in record.getMessage()]
    assert len(texts) == 1 and texts[0].startswith("barrier_wait[named]: start, waiting for: ")
    # The one that runs, and the one that waits.
    assert "Gate.tapped" in texts[0] and "nothing (" in texts[0]


def test_an_error_of_the_waiting_is_raised_by_the_barrier() -> None:
    class Broken:
        waiter: Any = None

        def done(self) -> bool:
            return False

        def wait(self) -> None:
            raise OSError("the device is gone")

    with pytest.raises(OSError, match="the device is gone"):
        deadlines.ended_by(Broken(), deadlines.Deadline(DEADLINE))


def test_the_deadline_is_kept(gate: Gate) -> None:
    hcb.id_tap(gate.tapped, 1.0)
    began = time.monotonic()
    outstanding(timeout=0.2)
    assert 0.2 <= time.monotonic() - began < DEADLINE
