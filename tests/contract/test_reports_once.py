"""H15, H17, H19, H32: one failure makes one report, whoever sees it, and many failures do not fill the log."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from support.first_lines import barrier
from support.helpers import DEADLINE
from support.subprocesses import run_program

import hostcb as hcb
from hostcb._errors import repeats
from hostcb._errors.repeats import SECONDS_BETWEEN_COUNTS

pytestmark = pytest.mark.contract("H15", "H17", "H19", "H32")

FAILS = """
def fails(value, transforms=None):
    raise ValueError("the reason")
one, every = np.float32(1), np.ones(4, np.float32)
on_all = jax.pmap(lambda x: hcb.io_callback(fails, x, x))
"""
CAUGHT = """
try:
    jax.block_until_ready({})
except jax.errors.JaxRuntimeError:
    print("caught")
"""
CALL = "jax.jit(lambda x: hcb.call(fails, x, result_shape=x))(one)"

# The program, and how often its standard error has the function's line, the traceback, and the exit's report.
ENDS = {
    "raised": (CALL, 2, 1, 0),
    "raised outside jit": ("hcb.call(fails, one, result_shape=one)", 2, 1, 0),
    "raised in a thread": (f"thread = threading.Thread(target=lambda: {CALL}); thread.start(); thread.join()", 2, 1, 0),
    "raised by a pure callback": ("jax.jit(lambda x: hcb.pure_callback(fails, x, x))(one)", 2, 1, 0),
    "raised by a debug callback": ("jax.jit(lambda x: hcb.debug.callback(fails, x))(one)", 2, 1, 0),
    "caught": (CAUGHT.format(CALL), 0, 0, 0),
    "caught on several devices": (CAUGHT.format("on_all(every)"), None, 0, 0),
    "caught outside of functions": (f"x = on_all(every){CAUGHT.format('x')}", None, 0, 0),
    "caught by a thread": (
        f"def main():{CAUGHT.format('on_all(every)').replace(chr(10), chr(10) + '    ')}\n"
        "thread = threading.Thread(target=main); thread.start(); thread.join()",
        None,
        0,
        0,
    ),
    "reported by a barrier": ("hcb.id_tap(fails, one); hcb.barrier_wait()", None, 1, 0),
    "a tap, and no barrier": ("hcb.id_tap(fails, one)", None, 1, 1),
    "a tap beside a call on several devices": (
        "x = jax.pmap(lambda x: hcb.call(fails, x, result_shape=x))(every); hcb.id_tap(fails, one)",
        None,
        1,
        1,
    ),
    "raised on several devices": ("jax.block_until_ready(on_all(every))", None, 1, 0),
    "no result on several devices": ("jax.pmap(lambda x: hcb.debug.callback(fails, x))(every)", None, 1, 1),
    "never asked for": ("on_all(every)", None, 1, 1),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_failure_is_reported_once(how: str) -> None:
    program, raised, tracebacks, at_exit = ENDS[how]
    ended = run_program(FAILS + program, devices=4, timeout=60.0)
    said = ended.stderr
    assert not [noise for noise in ("Exception ignored", "Fatal", "Check failed", "terminate called") if noise in said]
    assert said.count(", in fails\n") == tracebacks, said
    assert said.count("no barrier_wait reported it") == at_exit, said
    if raised is not None:
        assert said.count("ValueError: the reason") == raised, said
    if how == "caught":
        assert (ended.lines, said) == (["caught"], "")


def test_a_failure_that_the_program_caught_does_not_hide_another_one() -> None:
    program = f"{FAILS}{CAUGHT.format(CALL)}\nhcb.id_tap(lambda value, transforms: 1 / 0, one)"
    said = run_program(program, devices=1, timeout=60.0).check().stderr
    assert "ZeroDivisionError" in said and "the reason" not in said and " times" not in said


def test_a_forked_child_says_nothing_of_its_parents_failures() -> None:
    ended = run_program(f"{FAILS}hcb.id_tap(fails, one); jax.effects_barrier(); os.fork() and os.wait()", devices=1,
                        timeout=60.0)  # fmt: skip
    assert ended.stderr.count("no barrier_wait reported it") == 1, ended


def test_a_callback_that_fails_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fails(value: object, transforms: object) -> None:
        raise ValueError("the reason")

    def also_fails(value: object, transforms: object) -> None:
        raise OSError("another one")

    failed = threading.Event()
    program = jax.jit(lambda x: hcb.id_tap(fails, x))
    caplog.set_level(logging.ERROR, "hostcb")
    began = time.monotonic()
    for _ in range(200):
        program(np.float32(1))
    hcb.id_tap(also_fails, np.float32(1))
    jax.effects_barrier()
    failed.wait(SECONDS_BETWEEN_COUNTS)
    program(np.float32(1))
    reported = barrier()
    seconds = int(time.monotonic() - began) + 1
    assert "failed 202 times in all since the last barrier" in str(reported)
    lines = [line for line in caplog.messages if line.startswith("id_tap: ") and "fails (" in line]
    assert lines[0].endswith("(the next barrier_wait raises it)")
    assert sum("another one" in line for line in lines) == 1, "each callback has lines of its own"
    counts = [line for line in lines if " times since the last barrier. The last: id_tap: " in line]
    assert 1 <= len(counts) <= seconds / SECONDS_BETWEEN_COUNTS
    assert len(lines) == 2 + len(counts)
    assert re.search(r"has failed 201 times since", counts[-1])
    caplog.clear()
    hcb.id_tap(fails, np.float32(1))
    barrier()
    assert [line.endswith("(the next barrier_wait raises it)") for line in caplog.messages] == [True], "it counts anew"


@pytest.mark.parametrize("kind", ["call", "id_tap", "debug.callback"])
def test_devices_that_fail_together_have_one_line(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "SECONDS_BETWEEN_COUNTS", DEADLINE)

    def fails(value: Any, transforms: object = None) -> Any:
        raise ValueError(f"{value} is too large")

    programs: dict[str, Callable[[Any], Any]] = {
        "call": lambda x: hcb.call(fails, x, result_shape=x),
        "id_tap": lambda x: hcb.id_tap(fails, x),
        "debug.callback": lambda x: hcb.debug.callback(fails, x),
    }
    jax.effects_barrier()
    caplog.set_level(logging.ERROR, "hostcb")
    results = jax.pmap(programs[kind])(np.arange(jax.device_count(), dtype=np.float32))
    reported = barrier()
    del results
    assert len({each.device for each in reported.failures}) == jax.device_count() > 1
    (line,) = caplog.messages
    assert line.startswith(f"{kind}: ") and "is too large (" in line


def test_another_class_of_exception_has_a_line_of_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "SECONDS_BETWEEN_COUNTS", DEADLINE)
    classes = [ValueError, OSError, ValueError, KeyError, OSError, LookupError, TypeError]

    def fails(value: Any, transforms: object) -> None:
        raise classes[int(value)]("the reason")

    caplog.set_level(logging.ERROR, "hostcb")
    for number in range(len(classes)):
        hcb.id_tap(fails, np.float32(number))
    assert len(barrier().failures) == len(classes)
    said = [re.search(r"raised (\w+)", line) for line in caplog.messages]
    assert [found and found[1] for found in said] == ["ValueError", "OSError", "KeyError"], "three at most"
