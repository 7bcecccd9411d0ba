"""H22: traces of threads and of callbacks that overlap, of failures, and of files that cannot be finished."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import helpers
from support.helpers import DEADLINE
from support.trace_files import Trace

import hostcb as hcb

pytestmark = pytest.mark.contract("H22")

SCALAR = jax.ShapeDtypeStruct((), np.float32)
SHORT = 0.3
"""Seconds for what may happen in this time, and need not."""


def started(function: Any) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_the_values_are_those_that_the_function_received(tmp_path: Path) -> None:
    operand = np.float32([1, 2])

    def changes(value: Any) -> Any:
        value[...] = -1
        return value

    program = jax.jit(lambda x: hcb.call(changes, x, result_shape=x))
    with hcb.trace(tmp_path / "trace.json", values=True):
        helpers.finish(program(operand))
    (run,) = Trace(tmp_path / "trace.json").runs
    assert run["args"]["values"] == [repr(operand)]


def test_each_tap_outside_of_jit_has_an_arrow_of_its_own(tmp_path: Path) -> None:
    operands: tuple[Any, ...] = ((), 1.0, (1.0, 2.0))
    with hcb.trace(tmp_path / "trace.json"):
        for operand in operands * 2:
            hcb.id_tap(lambda *_: None, operand)
    assert Trace(tmp_path / "trace.json").check().arrows == 6


def test_an_exit_is_a_failure_of_its_run_alone(tmp_path: Path) -> None:
    def leaves(value: Any, transforms: Any) -> None:
        if value < 0:
            raise SystemExit("planted")

    with hcb.trace(tmp_path / "trace.json"):
        for number in (1.0, -1.0, 2.0):
            hcb.id_tap(leaves, number)
    with pytest.raises(hcb.CallbackException, match="planted"):
        hcb.barrier_wait()
    assert ["error" in run["args"] for run in Trace(tmp_path / "trace.json").runs] == [False, True, False]


def test_a_block_that_raises_waits_for_its_taps_and_records_none_after_it(tmp_path: Path) -> None:
    began, gate = threading.Event(), threading.Event()
    program = jax.jit(lambda x: hcb.id_tap(lambda *_: (began.set(), gate.wait(DEADLINE)), x))
    with pytest.raises(KeyError), hcb.trace(tmp_path / "trace.json"):
        for number in range(3):
            program(float(number))
        assert began.wait(DEADLINE)
        threading.Timer(0.1, gate.set).start()
        raise KeyError
    program(3.0)
    hcb.barrier_wait()
    assert len(Trace(tmp_path / "trace.json").runs) == 3


def test_two_runs_at_the_same_time_on_one_device_have_a_track_each(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def meets(value: Any) -> Any:
        if value >= 0:
            both.wait(DEADLINE)
        return value

    program = jax.jit(lambda x: hcb.pure_callback(meets, SCALAR, x))
    helpers.finish(program(np.float32(-1)))
    with hcb.trace(tmp_path / "trace.json"):
        for thread in [started(lambda: jax.block_until_ready(program(np.float32(1)))) for _ in range(2)]:
            thread.join(DEADLINE)
    found = Trace(tmp_path / "trace.json").check()
    assert sorted(found.tracks[run["tid"]] for run in found.runs) == ["cpu:0", "cpu:0 (2)"]


def test_a_function_that_goes_on_after_its_inner_program_keeps_its_track(tmp_path: Path) -> None:
    inside, beside = threading.Event(), threading.Event()
    inner, other = (
        jax.jit(lambda x, host=host: hcb.io_callback(host, SCALAR, x))
        for host in (lambda v: v, lambda v: (beside.set(), v)[1])
    )

    def outer(value: Any, transforms: Any) -> None:
        jax.block_until_ready(inner(value))
        inside.set()
        # An unordered callback may run beside a tap, and need not.
        beside.wait(SHORT)

    jax.block_until_ready((inner(1.0), other(1.0)))
    beside.clear()
    with hcb.trace(tmp_path / "trace.json"):
        hcb.id_tap(outer, np.float32(1))
        assert inside.wait(DEADLINE)
        started(lambda: jax.block_until_ready(other(1.0))).join(DEADLINE)
        hcb.barrier_wait()
    found = Trace(tmp_path / "trace.json").check()
    assert len(found.runs) == 3
    for one in found.runs:
        for two in found.runs:
            apart = one["ts"] >= two["ts"] + two["dur"] or two["ts"] >= one["ts"] + one["dur"]
            assert apart or one["tid"] != two["tid"] or one["args"]["thread_id"] == two["args"]["thread_id"]


def test_the_track_of_a_thread_has_its_name_whatever_the_name_is(tmp_path: Path) -> None:
    names = ('a "quoted" one', "a back\\slash", "line\nbreak\t", "naïve 日本")
    with hcb.trace(tmp_path / "trace.json"):
        for name in names:
            thread = threading.Thread(target=lambda: hcb.id_tap(lambda *_: None, 1.0), name=name)
            thread.start()
            thread.join(DEADLINE)
    found = Trace(tmp_path / "trace.json").check()
    assert len(found.runs) == len(names) and {*names} <= {*found.tracks.values()}


def test_a_thread_of_the_runtime_is_named_as_one(devices: list[jax.Device], tmp_path: Path) -> None:
    """Python would make a dummy object for it, which would stay."""
    program = jax.pmap(lambda x: hcb.call(lambda v: v, x, result_shape=x))
    with hcb.trace(tmp_path / "trace.json"):
        helpers.finish(program(np.arange(8.0, dtype=np.float32)))
    names = {run["args"]["thread"] for run in Trace(tmp_path / "trace.json").runs}
    assert any(name.startswith("runtime thread ") for name in names)
    assert not any("Dummy" in name for name in names)


@pytest.mark.parametrize("kind", ["id_tap", "call"])
def test_a_run_that_began_before_an_inner_trace_is_in_the_outer_one_alone(kind: str, tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()

    def held(value: Any, transforms: Any = ()) -> Any:
        entered.set()
        release.wait(DEADLINE)
        return value

    program = jax.jit(lambda x: hcb.id_tap(held, x) if kind == "id_tap" else hcb.call(held, x, result_shape=x))
    with hcb.trace(tmp_path / "outer.json"):
        thread = started(lambda: jax.block_until_ready(program(1.0)))
        assert entered.wait(DEADLINE)
        with hcb.trace(tmp_path / "inner.json"):
            release.set()
            thread.join(DEADLINE)
            hcb.barrier_wait()
            jax.block_until_ready(program(2.0))
    for name, count in (("outer", 2), ("inner", 1)):
        found = Trace(tmp_path / f"{name}.json").check()
        assert len(found.runs) == count and all(event.get("ts", 0) >= 0 for event in found.events)


def test_traces_in_each_other_have_their_own_values_and_counting_goes_on(tmp_path: Path) -> None:
    program = jax.jit(lambda x: hcb.id_tap(lambda *_: None, x))
    before = hcb.stats()
    with hcb.trace(tmp_path / "outer.json"):
        with hcb.trace(tmp_path / "inner.json", values=True):
            helpers.finish(program(1.0))
        helpers.finish(program(2.0))
    helpers.finish(program(3.0))
    found = {
        name: ["values" in run["args"] for run in Trace(tmp_path / f"{name}.json").check().runs]
        for name in ("outer", "inner")
    }
    assert found == {"outer": [False, False], "inner": [True]}
    assert (hcb.stats() - before)["cpu:0"].taps_run == 3


@pytest.mark.parametrize("kind", ["id_tap", "call"])
def test_all_callbacks_run_while_the_file_cannot_be_written(kind: str, tmp_path: Path) -> None:
    """The reader of a pipe goes away, and there are more events than a trace keeps before it writes them."""
    steps, seen = 400, []

    def host(value: Any, transforms: Any = ()) -> Any:
        seen.append(int(value))
        return value

    def step(_: Any, x: Any) -> Any:
        return 1 + (hcb.id_tap(host, x) if kind == "id_tap" else hcb.call(host, x, result_shape=SCALAR))

    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="pipe"), hcb.trace(tmp_path / "pipe"):
        os.close(reader)
        result = helpers.finish(jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, x))(np.float32(0)))
    assert seen == [*range(steps)] and float(result) == steps


def test_a_wait_that_a_signal_ends_leaves_a_whole_file_that_is_closed(tmp_path: Path) -> None:
    def interrupts(*_: Any) -> None:
        raise InterruptedError("planted")

    gate, main, opened = threading.Event(), threading.get_ident(), len(os.listdir("/proc/self/fd"))
    hcb.barrier_wait()
    before = signal.signal(signal.SIGALRM, interrupts)
    try:
        for _ in range(2):
            gate.clear()
            timer = threading.Timer(SHORT, signal.pthread_kill, (main, signal.SIGALRM))
            with pytest.raises(InterruptedError, match="planted"), hcb.trace(tmp_path / "trace.json"):
                hcb.id_tap(lambda *_: gate.wait(DEADLINE), 1.0)
                timer.start()
            gate.set()
            hcb.barrier_wait()
            assert isinstance(json.loads((tmp_path / "trace.json").read_text()), list)
    finally:
        gate.set()
        signal.signal(signal.SIGALRM, before)
    assert len(os.listdir("/proc/self/fd")) <= opened


@pytest.mark.contract("B1")
@pytest.mark.parametrize("returned", [1, np.zeros(3), (), False], ids=str)
def test_what_a_function_in_place_returns_is_refused_while_it_is_traced(returned: Any, tmp_path: Path) -> None:
    program = jax.jit(hcb.buffer_callback(lambda context, out, x: returned, SCALAR))
    with hcb.trace(tmp_path / "trace.json"):
        helpers.failed("returned something", program, np.float32(1))
        # No result is what is asked for.
        jax.block_until_ready(jax.jit(hcb.buffer_callback(lambda context, out, x: None, SCALAR))(np.float32(1)))
    before = hcb.stats()
    helpers.failed("returned something", program, np.float32(1))
    assert (hcb.stats() - before)["cpu:0"].failures == 1
