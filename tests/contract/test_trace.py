"""H22: a trace has every callback that ran while it was on, and its file can be read whatever happened."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.subprocesses import run_program
from support.trace_files import Trace

import hostcb as hcb
from hostcb._runtime.observing import observers

pytestmark = pytest.mark.contract("H22")

SCALAR = jax.ShapeDtypeStruct((), np.float32)


def tapped(value: Any, transforms: Any) -> None:
    pass


def add_one(context: Any, out: Any, x: Any) -> None:
    np.add(np.asarray(x), 1, out=np.asarray(out))


KINDS = {
    "id_tap": lambda x: hcb.id_tap(tapped, x),
    "id_print": lambda x: hcb.id_print(x, output_stream=open(os.devnull, "w"), what="x"),  # noqa: SIM115
    "call": lambda x: hcb.call(lambda v: v + 1, x, result_shape=x),
    "pure_callback": lambda x: hcb.pure_callback(lambda v: v + 1, x, x),
    "io_callback": lambda x: hcb.io_callback(lambda v: v + 1, x, x, ordered=True),
    "debug.callback": lambda x: hcb.debug.callback(lambda v: None, x) or x,
    "debug.print": lambda x: hcb.debug.print("{x} is it", x=x) or x,
    "buffer_callback": lambda x: hcb.buffer_callback(add_one, x)(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(lambda v: np.from_dlpack(v) + 1, x)(x),
}


@pytest.mark.parametrize("staged", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_kind_of_callback_is_recorded(kind: str, staged: Any, tmp_path: Path) -> None:
    def step(x: Any) -> Any:
        return KINDS[kind](x)

    program, x = staged(step), jnp.ones((2, 3), jnp.float32)
    # Compiled before the trace begins.
    helpers.finish(program(x))
    with hcb.trace(tmp_path / "trace.json"):
        jax.block_until_ready(program(x))
    helpers.finish(program(x))
    found = Trace(tmp_path / "trace.json").check()
    (run,) = found.runs
    arguments = run["args"]
    assert run["cat"] == arguments["callback"] == kind
    assert arguments["operands"] == ["float32[2, 3]"] and "values" not in arguments
    # In-place callbacks need a program outside jit, too.
    assert arguments.get("program") == ("jit_step" if staged is jax.jit else arguments.get("program"))
    assert arguments["device"] == "cpu:0" == found.tracks[run["tid"]]
    assert found.arrows == len(found.hand_overs) == (kind in ("id_tap", "id_print"))


def test_functions_are_named(tmp_path: Path) -> None:
    with hcb.trace(tmp_path / "trace.json"):
        hcb.id_tap(tapped, 1.0)
    (run,) = Trace(tmp_path / "trace.json").runs
    assert run["name"] == "tapped"
    assert run["args"]["function"].startswith("tapped (") and Path(__file__).name in run["args"]["function"]


def test_each_device_has_its_track_in_its_order(devices: list[jax.Device], tmp_path: Path) -> None:
    def body(i: Any, x: Any) -> Any:
        y = hcb.io_callback(lambda v: v + 1, SCALAR, hcb.id_tap(tapped, x), ordered=True)
        return hcb.pure_callback(lambda v: v, SCALAR, y)

    program = jax.pmap(lambda x: jax.lax.fori_loop(0, 20, body, x))
    with hcb.trace(tmp_path / "trace.json"):
        out = jax.block_until_ready(program(jnp.arange(8.0)))
    np.testing.assert_array_equal(out, np.arange(8.0) + 20)
    found = Trace(tmp_path / "trace.json").check()
    for device in devices:
        on = found.on(f"cpu:{device.id}")
        assert [run["cat"] for run in on] == ["id_tap", "io_callback", "pure_callback"] * 20
        assert [run["args"]["device"] for run in on] == [f"cpu:{device.id}"] * 60
    assert len(found.runs) == 8 * 60 and found.arrows == 8 * 20


def test_a_callback_whose_device_is_not_known_is_on_its_threads_track(tmp_path: Path) -> None:
    with hcb.trace(tmp_path / "trace.json"):
        helpers.finish(jax.jit(lambda: hcb.io_callback(lambda: None, None))())
    found = Trace(tmp_path / "trace.json").check()
    (run,) = found.runs
    assert found.tracks[run["tid"]] == run["args"]["thread"] == threading.current_thread().name


def test_queued_taps_are_waited_for(tmp_path: Path) -> None:
    gate = threading.Event()
    program = jax.jit(lambda x: hcb.id_tap(lambda *_: gate.wait(helpers.DEADLINE), x))
    helper = threading.Timer(0.05, gate.set)
    with hcb.trace(tmp_path / "trace.json"):
        for number in range(5):
            program(float(number))
        helper.start()
    assert gate.is_set()
    found = Trace(tmp_path / "trace.json").check()
    assert len(found.runs) == len(found.hand_overs) == found.arrows == 5
    # The device went on before the first function had ended.
    assert found.hand_overs[-1]["ts"] < found.runs[0]["ts"] + found.runs[0]["dur"]
    helper.join()


def test_long_traces_are_written_while_they_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    @jax.jit
    def long(x: Any) -> Any:
        return jax.lax.fori_loop(0, 2000, lambda i, x: hcb.call(lambda v: v, x, result_shape=x), x)

    with hcb.trace(path):
        jax.block_until_ready(long(jnp.float32(0)))
        # All but the last chunk.
        assert path.read_text().count('"ph":"X"') > 1500
    runs = Trace(path).runs
    assert len(runs) == 2000 and {run["args"]["program"] for run in runs} == {"jit_long"}


def test_failures_are_marked_and_stay_for_the_barrier(tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    with hcb.trace(tmp_path / "trace.json"):
        hcb.id_tap(fails, 1.0)
    with pytest.raises(hcb.CallbackException, match="planted"):
        hcb.barrier_wait()
    with hcb.trace(tmp_path / "call.json"), pytest.raises(jax.errors.JaxRuntimeError, match="planted"):
        jax.jit(lambda x: hcb.buffer_callback(fails, x)(x))(jnp.ones(3))
    with pytest.raises(hcb.CallbackException, match="planted"):
        hcb.barrier_wait()
    for name, kind in (("trace", "id_tap"), ("call", "buffer_callback")):
        (run,) = Trace(tmp_path / f"{name}.json").runs
        assert run["args"]["error"] == "ValueError: planted" and run["cat"] == f"{kind},failed"


def test_nested_traces_each_have_everything(tmp_path: Path) -> None:
    program = jax.jit(lambda x: hcb.id_tap(tapped, x))
    with hcb.trace(tmp_path / "outer.json"):
        program(1.0)
        with hcb.trace(tmp_path / "inner.json"):
            program(2.0)
        program(3.0)
    program(4.0)
    helpers.finish()
    assert len(Trace(tmp_path / "outer.json").check().runs) == 3
    # A value that was handed over before the inner trace began may run in it.
    assert 1 <= len(Trace(tmp_path / "inner.json").check().runs) <= 2


def test_traces_of_several_threads_each_have_everything(tmp_path: Path) -> None:
    program = jax.jit(lambda x: hcb.call(lambda v: v, x, result_shape=x))
    program(jnp.float32(0))
    together = threading.Barrier(4)

    def work(number: int) -> None:
        with hcb.trace(tmp_path / f"{number}.json"):
            together.wait(helpers.DEADLINE)
            for _ in range(50):
                jax.block_until_ready(program(jnp.float32(0)))
            together.wait(helpers.DEADLINE)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(helpers.DEADLINE)
    assert [len(Trace(tmp_path / f"{number}.json").check().runs) for number in range(4)] == [200] * 4


def test_a_run_begins_when_the_one_before_it_on_its_track_has_ended(tmp_path: Path) -> None:
    """Its thread may have to wait between the begin that other observers see and its place on the device's track."""
    callback = SimpleNamespace(name="f", kind=SimpleNamespace(name="call"))
    program = SimpleNamespace(name="program")
    host = SimpleNamespace(callback=callback, program=program, operand_avals=(), nbytes=0, about=None)
    with hcb.trace(tmp_path / "trace.json"):
        assert observers.on is not None
        first, second = (observers.on.around(host, jax.devices()[0], (), lambda: None) for _ in range(2))
        first()
        second()
    assert len(Trace(tmp_path / "trace.json").check().runs) == 2


def test_callbacks_inside_of_callbacks_are_recorded(tmp_path: Path) -> None:
    inner = jax.jit(lambda x: hcb.id_tap(tapped, x))

    def outer(value: Any) -> Any:
        return np.asarray(inner(value))

    with hcb.trace(tmp_path / "trace.json"):
        helpers.finish(jax.jit(lambda x: hcb.call(outer, x, result_shape=SCALAR))(1.0))
    found = Trace(tmp_path / "trace.json").check()
    assert sorted(run["cat"] for run in found.runs) == ["call", "id_tap"]


def test_values_are_shown_if_asked_for(tmp_path: Path) -> None:
    with hcb.trace(tmp_path / "trace.json", values=True):
        hcb.id_tap(tapped, (np.float32(2.5), np.zeros(10_000)))
    (run,) = Trace(tmp_path / "trace.json").runs
    first, second = run["args"]["values"]
    assert "2.5" in first and len(second) < 500


def test_a_decorated_function_is_recorded_each_time(tmp_path: Path) -> None:
    @hcb.trace(tmp_path / "trace.json")
    def work(times: int) -> None:
        for _ in range(times):
            hcb.id_tap(tapped, 1.0)

    for times in (3, 1):
        work(times)
        assert len(Trace(tmp_path / "trace.json").runs) == times


def test_bad_paths_are_refused_at_once(tmp_path: Path) -> None:
    began = []
    for path, error in ((tmp_path / "no" / "folder.json", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error), hcb.trace(path):
            began.append(path)
    with pytest.raises(TypeError, match=r"path.*3"):
        hcb.trace(3)  # type: ignore[arg-type]
    with hcb.trace(tmp_path / "trace.json"):
        with pytest.raises(ValueError, match=r"trace.json"), hcb.trace(tmp_path / "." / "trace.json"):
            began.append("twice")
        hcb.id_tap(tapped, 1.0)
    assert not began and len(Trace(tmp_path / "trace.json").runs) == 1
    # What could not be written before may be now.
    (tmp_path / "no").mkdir()
    with hcb.trace(tmp_path / "no" / "folder.json"):
        hcb.id_tap(tapped, 1.0)
    assert len(Trace(tmp_path / "no" / "folder.json").runs) == 1


def test_a_trace_inside_of_a_callback_is_refused(tmp_path: Path) -> None:
    def traces(*_: Any) -> None:
        with hcb.trace(tmp_path / "trace.json"):
            pass

    hcb.id_tap(traces, 1.0)
    with pytest.raises(hcb.CallbackException, match="inside"):
        hcb.barrier_wait()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this platform has no device that is always full")
def test_a_full_disk_is_reported_and_harms_no_callback() -> None:
    seen: list[float] = []
    with pytest.raises(OSError, match=r"/dev/full.*No space left"), hcb.trace("/dev/full"):
        hcb.id_tap(lambda value, transforms: seen.append(float(value)), 1.0)
    assert seen == [1.0]
    with pytest.raises(KeyError) as caught, hcb.trace("/dev/full"):
        raise KeyError
    assert "lacks events" in caught.value.__notes__[0]


def test_interrupts_leave_a_whole_file(tmp_path: Path) -> None:
    """A signal handler that calls back itself comes at any moment of the recording."""
    program = """
import signal
program = jax.jit(lambda x: jax.lax.fori_loop(0, 3000, lambda i, x: hcb.call(lambda v: v, x, result_shape=x), x))
tap = jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))
x = jnp.float32(0)
program(x), tap(x), hcb.barrier_wait()
handled = [0]
def handle(*_):
    handled[0] += 1
    tap(x)
signal.signal(signal.SIGALRM, handle)
with hcb.trace(sys.argv[1]):
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    jax.block_until_ready(program(x))
    signal.setitimer(signal.ITIMER_REAL, 0)
events = json.load(open(sys.argv[1]))
kinds = [event["cat"] for event in events if event["ph"] == "X"]
print(json.dumps([kinds.count("call"), kinds.count("id_tap") == handled[0]]))
"""
    assert run_program(program, str(tmp_path / "trace.json"), devices=1, timeout=90).json() == [3000, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_child_does_not_write_its_parents_file(tmp_path: Path) -> None:
    program = """
import warnings
warnings.simplefilter("ignore")
tap = jax.jit(lambda x: hcb.id_tap(lambda v, t: None, x))
with hcb.trace(sys.argv[1]):
    tap(1), tap(2)
    child = os.fork()
    if not child:
        for _ in range(600):
            tap(3)
        hcb.barrier_wait()
if not child:
    with hcb.trace(sys.argv[1] + ".child"):
        tap(4)
    sys.exit()
os.waitpid(child, 0)
count = lambda name: sum(event.get("cat") == "id_tap" for event in json.load(open(name)))
print(json.dumps([count(sys.argv[1]), count(sys.argv[1] + ".child")]))
"""
    assert run_program(program, str(tmp_path / "trace.json"), devices=1, timeout=60).json() == [2, 1]


def test_a_killed_process_leaves_what_was_written(tmp_path: Path) -> None:
    """Chrome's format allows that the end of the array is missing."""
    program = """
program = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda i, x: hcb.call(lambda v: v, x, result_shape=x), x))
with hcb.trace(sys.argv[1]):
    jax.block_until_ready(program(jnp.float32(0)))
    os._exit(0)
"""
    run_program(program, str(tmp_path / "trace.json"), devices=1, timeout=60).check()
    events = json.loads((tmp_path / "trace.json").read_text() + "]")
    assert sum(event["ph"] == "X" for event in events) > 500
