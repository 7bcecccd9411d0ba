"""H13, H17, H19: the barrier, the receiver's stop, and the end of the program."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import threading
from typing import Any

import jax
import numpy as np
import pytest
from support import helpers
from support.helpers import DEADLINE, Record
from support.pairwise import pairwise
from support.subprocesses import run_program

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
LAYOUTS = {layout.name: layout for layout in helpers.MAIN_LAYOUTS}
ACTIONS = {"barrier": hcb.barrier_wait, "stop": hcb.stop_outfeed_receiver}


@pytest.mark.contract("H13")
@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
@pytest.mark.parametrize("inside", [lambda f: f, jax.vmap, jax.grad], ids=["alone", "vmap", "grad"])
def test_a_barrier_in_a_function_that_jax_traces_says_that_it_waits_now(inside: Any, traced: bool) -> None:
    record = Record()

    def program(x: Any) -> Any:
        hcb.id_tap(record.tap, x)
        hcb.barrier_wait("inner", timeout=DEADLINE)
        return x

    x = np.ones(3 if inside is jax.vmap else (), np.float32)
    words = r"barrier_wait\[inner\] was called while JAX traces a function: it waits now, .* Call it after the program"
    with pytest.warns(RuntimeWarning, match=words) if traced else contextlib.nullcontext() as warned:
        (jax.jit(inside(program)) if traced else inside(program))(x)
    assert not traced or [each.filename for each in warned] == [__file__]
    # Otherwise it has waited: each operation has run.
    assert traced or len(record.all) == 1
    hcb.barrier_wait()
    assert len(record.all) == 1


def barrier_in_thread(action: Any = hcb.barrier_wait) -> tuple[threading.Thread, threading.Event]:
    returned = threading.Event()
    thread = threading.Thread(target=lambda: (action(), returned.set()))
    thread.start()
    return thread, returned


@pytest.mark.contract("H13")
@pairwise(name=LAYOUTS, kind=("tap", "call", "tap_behind_call"), action=ACTIONS)
def test_waits_for_threads_that_ended_and_results_that_were_dropped(name: str, kind: str, action: str) -> None:
    layout = LAYOUTS[name]
    gate, record, started = threading.Event(), Record(), threading.Event()

    def slow(arg: Any, transforms: Any = None) -> None:
        started.set()
        gate.wait(DEADLINE)
        record.add(arg)

    def program(x):
        if kind == "tap":
            hcb.id_tap(slow, x)
        else:
            hcb.call(slow, x)
        if kind == "tap_behind_call":
            hcb.id_tap(record.tap, x)
        return x

    compiled = layout.compile(program)
    dispatcher = threading.Thread(target=lambda: (compiled(layout.same(X)), gc.collect()))
    dispatcher.start()
    assert started.wait(DEADLINE), "the computation should have started"
    thread, returned = barrier_in_thread(ACTIONS[action])
    early = returned.wait(0.15)
    ran = len(record.all)
    gate.set()
    thread.join(DEADLINE)
    covered = len(record.all)
    dispatcher.join(DEADLINE)
    assert returned.is_set(), "it should return when the callbacks have run"
    assert not early, f"it returned although a callback had not ended ({ran} had)"
    every = len(layout.callers) * (2 if kind == "tap_behind_call" else 1)
    # Outside jit a call returns before the tap behind it is dispatched. The barrier may return between the two.
    before = len(layout.callers) if name == "eager" else every
    assert covered >= before, f"{covered} callbacks had run when it returned, but should {before}"
    hcb.barrier_wait()
    assert len(record.all) == every


def fills(context: Any, out: Any, x: Any, function: Any) -> None:
    np.asarray(out)[...] = function(np.asarray(x))


OUTSIDE_JIT = {
    "call": lambda function, x: hcb.call(function, x, result_shape=x),
    "io_ordered": lambda function, x: hcb.io_callback(function, x, x, ordered=True),
    "debug_ordered": lambda function, x: hcb.debug.callback(function, x, ordered=True),
    "buffer": lambda function, x: hcb.buffer_callback(
        functools.partial(fills, function=function), x, has_side_effect=True
    )(x),
}


@pytest.mark.contract("H13")
@pytest.mark.parametrize("kind", OUTSIDE_JIT)
def test_waits_for_a_callback_that_another_thread_runs_outside_jit(kind: str) -> None:
    began, gate = threading.Event(), threading.Event()

    def held(arg: Any) -> Any:
        began.set()
        gate.wait(DEADLINE)
        return arg

    caller = threading.Thread(target=lambda: OUTSIDE_JIT[kind](held, jax.numpy.asarray(X)))
    caller.start()
    assert began.wait(DEADLINE)
    thread, returned = barrier_in_thread()
    # One-sided: a barrier that is late only hides a fault.
    early = returned.wait(0.1)
    gate.set()
    thread.join(DEADLINE), caller.join(DEADLINE)
    assert returned.is_set() and not early


@pytest.mark.contract("H13")
def test_waits_for_a_program_on_several_devices_that_a_tap_starts_and_nobody_waits_for() -> None:
    record, results = Record(), []

    def late(arg: Any) -> Any:
        if arg[0] == 1:
            # One-sided: a barrier that is late only hides a fault.
            threading.Event().wait(0.1)
        return arg

    devices = jax.devices()[:2]
    # The device waits for the call, so the operand of the tap is not there before it ends.
    inner = jax.pmap(lambda x: hcb.id_tap(record.tap, hcb.call(late, x, result_shape=x)), devices=devices)
    outer = jax.jit(lambda x: hcb.id_tap(lambda *_: results.append(inner(np.array([[0], [1]], np.float32))), x))
    for run in range(1, 4):
        jax.block_until_ready(outer(np.float32(1)))
        hcb.barrier_wait()
        assert sorted(seen.arg[0] for seen in record.all) == [0.0] * run + [1.0] * run


@pytest.mark.contract("H13")
def test_several_barriers_at_once() -> None:
    gate, record = threading.Event(), Record()
    hcb.id_tap(lambda arg, transforms: (gate.wait(DEADLINE), record.add(arg)), 1.0)
    waiting = [barrier_in_thread() for _ in range(4)]
    assert not any(returned.wait(0.05) for _, returned in waiting), "a barrier returned too early"
    gate.set()
    for thread, returned in waiting:
        thread.join(DEADLINE)
        assert returned.is_set(), "each barrier should return"
    assert len(record.all) == 1


@pytest.mark.contract("H13")
def test_does_not_wait_for_what_starts_later() -> None:
    """A thread that never stops tapping must not keep a barrier from returning."""
    stop, count = threading.Event(), []
    step = jax.jit(lambda x: hcb.id_tap(lambda arg, transforms: count.append(0), x))

    def work() -> None:
        while not stop.is_set():
            step(1.0)

    worker = threading.Thread(target=work)
    worker.start()
    thread, returned = barrier_in_thread(lambda: [hcb.barrier_wait() for _ in range(20)])
    in_time = returned.wait(DEADLINE)
    stop.set()
    worker.join()
    thread.join(DEADLINE)
    assert in_time, "twenty barriers did not return while another thread kept tapping"


@pytest.mark.contract("H13")
def test_a_failure_is_reported_to_one_barrier_only() -> None:
    def bad(arg: Any, transforms: Any) -> None:
        raise ValueError("once")

    hcb.id_tap(bad, 1.0)
    caught: list[Exception] = []

    def wait() -> None:
        try:
            hcb.barrier_wait()
        except hcb.CallbackException as exception:
            caught.append(exception)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(DEADLINE) for thread in threads]
    assert len(caught) == 1, f"{len(caught)} barriers raised"


@pytest.mark.contract("H13")
def test_without_anything_to_wait_for() -> None:
    for _ in range(3):
        assert hcb.barrier_wait() is None
    assert hcb.barrier_wait("name") is None
    assert hcb.barrier_wait(logging_name="name") is None


@pytest.mark.contract("H13")
def test_first_thing_in_a_process() -> None:
    source = "hcb.barrier_wait(); hcb.stop_outfeed_receiver(); hcb.barrier_wait(); print('done')"
    assert run_program(source).check().lines == ["done"]


@pytest.mark.contract("H13")
@pytest.mark.parametrize(
    ("action", "kind"),
    [("hcb.barrier_wait()", "tap"), ("hcb.barrier_wait()", "call"), ("hcb.stop_outfeed_receiver()", "call"),
     ("jax.effects_barrier()", "tap")],
)  # fmt: skip
def test_barrier_inside_a_callback_does_not_hang(action: str, kind: str) -> None:
    source = f"""
def function(a, t=None):
    try:
        {action}
    except Exception as exception:
        print(type(exception).__name__)
@jax.jit
def program(x):
    if {kind == "tap"}:
        return hcb.id_tap(function, x)
    hcb.call(function, x)
    return x
jax.block_until_ready(program(1.0))
hcb.barrier_wait()
print("done")
"""
    assert run_program(source, timeout=120).check().lines[-1] == "done"


@pytest.mark.contract("H19")
@pytest.mark.parametrize("fails", [False, True])
def test_barrier_is_logged_by_name(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    hcb.id_tap(lambda arg, transforms: 1 / (not fails), 1.0)
    raised = pytest.raises(hcb.CallbackException) if fails else contextlib.nullcontext()
    with caplog.at_level(logging.DEBUG, logger="hostcb"), raised:
        hcb.barrier_wait("my barrier")
    mine = [one for one in caplog.records if one.name.startswith("hostcb") and "my barrier" in one.getMessage()]
    assert len(mine) >= 2, "its start and its end should be logged"
    assert {one.levelno for one in mine} == {logging.DEBUG}, "at level DEBUG"


@pytest.mark.contract("H19")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_callbacks_that_end_well_leave_nothing_in_the_log(
    layout: helpers.Layout, caplog: pytest.LogCaptureFixture
) -> None:
    def program(x):
        return hcb.call(np.asarray, hcb.id_tap(lambda arg, transforms: None, x), result_shape=x)

    compiled = layout.compile(program)
    with caplog.at_level(logging.DEBUG, logger="hostcb"):
        for _ in range(3):
            jax.block_until_ready(compiled(layout.same(np.float32([1, 2]))))
        hcb.barrier_wait("mine")
    assert [one for one in caplog.messages if "barrier_wait[mine]" not in one] == []


@pytest.mark.contract("H19")
def test_failures_are_logged_when_they_happen(caplog: pytest.LogCaptureFixture) -> None:
    happened = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.ERROR and "the reason" in record.getMessage():
                happened.set()

    def bad(arg: Any, transforms: Any) -> None:
        raise ValueError("the reason")

    handler, logger = Handler(), logging.getLogger("hostcb")
    logger.addHandler(handler)
    try:
        hcb.id_tap(bad, 1.0)
        assert happened.wait(DEADLINE), "it should be logged without a barrier"
    finally:
        logger.removeHandler(handler)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("H19")
def test_a_stuck_program_says_what_it_waits_for() -> None:
    """The log of a barrier that does not return names the callback that keeps it."""
    source = """
logging.basicConfig(level=logging.DEBUG)
gate = threading.Event()
def the_stuck_callback(a, t):
    gate.wait(60)
class Handler(logging.Handler):
    def emit(self, record):
        if "the_stuck_callback" in record.getMessage() and "stuck barrier" in record.getMessage():
            print("named", flush=True)
            gate.set()
logging.getLogger("hostcb").addHandler(Handler())
hcb.id_tap(the_stuck_callback, 1.0)
hcb.barrier_wait("stuck barrier")
"""
    ended = run_program(source, timeout=120).check()
    assert ended.lines[:1] == ["named"], f"the barrier should say within a while what it waits for: {ended}"


@pytest.mark.contract("H13")
def test_while_it_waits_other_devices_get_their_first_taps() -> None:
    source = """
begun, goes_on, seen = threading.Event(), threading.Event(), []
def tapped(number):
    def function(a, t):
        if number == 0:
            begun.set()
            goes_on.wait(30)
        seen.append(number)
    jax.jit(lambda x: hcb.id_tap(function, x))(jax.device_put(np.float32(number), jax.devices()[number]))
def on_others():
    begun.wait(30)
    for number in range(1, 8):
        tapped(number)
    goes_on.set()
thread = threading.Thread(target=on_others)
thread.start()
tapped(0)
hcb.barrier_wait()
assert 0 in seen, seen
thread.join()
hcb.barrier_wait()
assert sorted(seen) == [*range(8)], seen
print("done")
"""
    assert run_program(source, timeout=120).check().lines == ["done"]


@pytest.mark.contract("H14", "H15")
@pytest.mark.parametrize("kind", ["tap", "call on two devices", "io_ordered on two devices"])
def test_a_handler_of_the_log_may_run_a_program_when_a_callback_has_failed(kind: str) -> None:
    source = f"""
seen = []
metric = jax.jit(lambda x: hcb.id_tap(lambda a, t: seen.append(float(a)), x + 1))
metric(np.float32(0))
hcb.barrier_wait()
class Handler(logging.Handler):
    def emit(self, record):
        if record.levelno == logging.ERROR:
            jax.block_until_ready(metric(np.float32(1)))
logging.getLogger("hostcb").addHandler(Handler())
def fails(a, t=None):
    if a.ravel()[0] == 0:
        raise OSError("the reason")
    return a
kind, _, devices = "{kind}".partition(" on ")
function = {{
    "tap": lambda x: hcb.id_tap(fails, x),
    "call": lambda x: hcb.call(fails, x, result_shape=x),
    "io_ordered": lambda x: hcb.io_callback(fails, x, x, ordered=True),
}}[kind]
# One of two devices fails.
mesh, spec = jax.sharding.Mesh(np.array(jax.devices()[:2]), "d"), jax.sharding.PartitionSpec("d")
program = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec) if devices else function)
for _ in range(2):
    try: jax.block_until_ready(program(np.arange(2, dtype=np.float32)))
    except jax.errors.JaxRuntimeError as error: assert "the reason" in str(error)
    try: hcb.barrier_wait()
    except hcb.CallbackException as error: print(len(error.failures))
assert seen == [1.0, 2.0, 2.0], seen
"""
    assert run_program(source, timeout=120).check().lines == ["1", "1"]
