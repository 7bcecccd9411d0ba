"""H31: profiles of JAX show each run of a callback's function by its name."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._runtime.observing import observers
from hostcb._runtime.queue.queues import queues

pytestmark = pytest.mark.contract("H31")


def spans(folder: Path) -> list[dict[str, Any]]:
    """The events of a profile that have the name of a callback of this file, oldest first."""
    (file,) = folder.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    ours = [event for event in events if event.get("ph") == "X" and event.get("args", {}).get("device", "")]
    return sorted(ours, key=lambda event: event["ts"])


def shown(folder: Path) -> list[tuple[str, str]]:
    here = f"{Path(__file__).parent}/"
    return [(event["name"].replace(here, ""), event["args"]["device"]) for event in spans(folder)]


def tapped(value: Any, transforms: Any) -> None:
    pass


def add_one(context: Any, out: Any, x: Any) -> None:
    np.add(np.asarray(x), 1, out=np.asarray(out))


def doubled(value: Any) -> Any:
    return 2 * np.from_dlpack(value)


KINDS = {
    "id_tap: tapped": lambda x: hcb.id_tap(tapped, x),
    "id_print: 'what: x'": lambda x: hcb.id_print(x, what="x"),
    "call: doubled": lambda x: hcb.call(doubled, x, result_shape=x),
    "pure_callback: doubled": lambda x: hcb.pure_callback(doubled, x, x),
    "io_callback: doubled": lambda x: hcb.io_callback(doubled, x, x, ordered=True),
    "debug.callback: doubled": lambda x: hcb.debug.callback(doubled, x) or x,
    "buffer_callback: add_one": lambda x: hcb.buffer_callback(add_one, x)(x),
    "dlpack_callback: doubled": lambda x: hcb.dlpack_callback(doubled, x)(x),
}


def test_each_kind_of_callback_is_a_span_with_its_name_and_device(tmp_path: Path) -> None:
    programs = {name: jax.jit(lambda x, step=step: step(x)) for name, step in KINDS.items()}
    x = jnp.ones((2, 3), jnp.float32)
    # Compiled before the profile begins, and taps are bound to the ring.
    for program in programs.values():
        helpers.finish(program(x))
    accepted = queues[jax.devices()[0]].ever_accepted()
    with jax.profiler.trace(tmp_path):
        for program in programs.values():
            helpers.finish(program(x))
            hcb.barrier_wait()
    # After it nothing more is recorded, and nothing watches for it.
    helpers.finish(programs["call: doubled"](x))
    found = shown(tmp_path)
    assert [name.partition(" (")[0] for name, _ in found] == [*KINDS]
    assert {device for _, device in found} == {"cpu:0"}
    lines = {
        name: function.__code__.co_firstlineno
        for name, function in (("tapped", tapped), ("doubled", doubled), ("add_one", add_one))
    }
    for name, _ in found:
        _, separator, function = name.partition(": ")
        if separator and not name.startswith("id_print"):
            short = function.partition(" ")[0]
            assert function == f"{short} (test_profiles.py:{lines[short]})"
    assert queues[jax.devices()[0]].ever_accepted() == accepted + 2


def test_each_device_and_a_function_that_fails(devices: list[jax.Device], tmp_path: Path) -> None:
    def bad(value: Any, transforms: Any) -> None:
        raise ValueError

    with jax.profiler.trace(tmp_path):
        for device in devices[:2]:
            hcb.id_tap(bad, jax.device_put(1.0, device))
        with pytest.raises(hcb.CallbackException):
            hcb.barrier_wait()
    found = shown(tmp_path)
    assert sorted(device for _, device in found) == ["cpu:0", "cpu:1"]
    assert {name.partition(" (")[0] for name, _ in found} == {f"id_tap: {bad.__qualname__}"}


def test_threads_of_the_runtime_have_their_spans(devices: list[jax.Device], tmp_path: Path) -> None:
    program = jax.pmap(lambda x: hcb.call(doubled, x, result_shape=x))
    x = np.ones((len(devices), 3), np.float32)
    jax.block_until_ready(program(x))
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(program(x))
    found = spans(tmp_path)
    assert sorted(event["args"]["device"] for event in found) == sorted(f"cpu:{device.id}" for device in devices)
    assert all(event["name"].startswith("call: doubled (") for event in found)


def test_a_span_is_on_the_line_of_the_thread_that_runs_and_lasts_as_long(tmp_path: Path) -> None:
    gate, began = threading.Event(), threading.Event()

    def slow(value: Any, transforms: Any) -> None:
        began.set()
        assert gate.wait(helpers.DEADLINE)

    with jax.profiler.trace(tmp_path):
        hcb.id_tap(slow, 1.0)
        assert began.wait(helpers.DEADLINE)
        threading.Event().wait(0.05)
        jax.block_until_ready(jax.jit(lambda x: hcb.pure_callback(lambda v: v, x, x))(jnp.ones(3)))
        gate.set()
        hcb.barrier_wait()
    tap, pure = spans(tmp_path)
    assert tap["dur"] >= 50_000 and tap["tid"] != pure["tid"]
    assert tap["ts"] <= pure["ts"] and pure["ts"] + pure["dur"] <= tap["ts"] + tap["dur"]


def test_nothing_watches_before_and_after_a_profile(tmp_path: Path) -> None:
    before = observers.on
    for number in range(2):
        jax.profiler.start_trace(tmp_path / str(number))
        assert observers.on is not None
        hcb.id_tap(tapped, 1.0)
        hcb.barrier_wait()
        jax.profiler.stop_trace()
        assert (observers.on is None) == (before is None)
        assert len(spans(tmp_path / str(number))) == 1


def test_a_profile_that_was_on_when_hostcb_was_imported(tmp_path: Path) -> None:
    prelude = "import jax, sys\njax.profiler.start_trace(sys.argv[1])\n"
    source = """
import hostcb as hcb
def tapped(value, transforms): pass
hcb.id_tap(tapped, 1.0)
hcb.barrier_wait()
jax.profiler.stop_trace()
"""
    run_program(source, str(tmp_path), prelude=prelude).check()
    assert [name.partition(" (")[0] for name, _ in shown(tmp_path)] == ["id_tap: tapped"]


def test_a_name_that_the_profiler_would_take_for_fields(tmp_path: Path) -> None:
    def odd(value: Any, transforms: Any) -> None:
        pass

    odd.__qualname__ = "odd#device=tpu:9#"
    odd.__code__ = odd.__code__.replace(co_filename="part#2.py", co_firstlineno=1)
    with jax.profiler.trace(tmp_path):
        hcb.id_tap(odd, 1.0)
        hcb.barrier_wait()
    ((name, device),) = shown(tmp_path)
    assert name.startswith("id_tap: odd device=tpu:9  (") and "2.py:1" in name and device == "cpu:0"
