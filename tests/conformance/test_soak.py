"""The command `soak`: short ones of hostcb and of broken ones, what grows, and what ends a soak from outside."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.subprocesses import PROGRAMS, ROOT, run_program

from conformance.soak.growth import ALLOWED, BLOCKS, LEAST_SAMPLES, Found, Slope, slope_of
from conformance.soak.record import Record

pytestmark = pytest.mark.contract("C64")

SHORT = {"events": 1500, "threads": 2}
LEAKING = {"events": 10_000, "threads": 1, "acts": 2, "programs": 1, "warm_up": 0}
BROKEN = {
    "conformance.mutants:dropped": ("lost",),
    "conformance.mutants:neighbours_swapped": ("order",),
    "conformance.mutants:duplicated": ("duplicate",),
    "reusing": ("wrong operand", "torn operand", "order", "duplicate", "unexpected"),
    "conformance.mutants:early_barrier": ("lost", "early barrier", "unexpected", "failure not reported"),
}


Soaker: TypeAlias = Callable[..., tuple[int, str, str]]
IMPLEMENTATION = """
import os, threading
import hostcb
from conformance.implementations.hostcb import Hostcb
IMPLEMENTATION = Hostcb(hostcb)
"""


@pytest.fixture
def soak(tmp_path: Path) -> Soaker:
    """Runs the command, with modules of the test; the exit code, and what it wrote."""
    paths = os.pathsep.join(map(str, (ROOT, PROGRAMS, tmp_path)))

    def run(*options: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "conformance", "soak", "--devices", "2", "--threads", "1", *options]
        environment = os.environ | {"PYTHONPATH": paths}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    return run


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What short soaks of hostcb and of broken ones have found, in one process."""
    asked = {"hostcb": SHORT, "leaking": LEAKING, **dict.fromkeys(BROKEN, SHORT)}
    results: dict[str, Any] = run_program("soaks.py", json.dumps(asked), devices=2).json()
    return results


@pytest.mark.thorough
def test_a_short_soak_finds_nothing_in_hostcb(found: dict[str, Any]) -> None:
    assert found["hostcb"]["anomalies"] == []
    assert found["hostcb"]["events"] >= SHORT["events"]


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.thorough
def test_a_short_soak_finds_a_defect(found: dict[str, Any], name: str) -> None:
    (first, *_) = found[name]["anomalies"]
    assert first.startswith(BROKEN[name]), first


# Growth -------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_list_that_is_kept_for_each_tap_is_found(found: dict[str, Any]) -> None:
    """Nothing else is wrong there; the slope of memory says nothing in so short a time."""
    assert found["leaking"]["anomalies"] == []
    assert BLOCKS in found["leaking"]["growing"]
    assert BLOCKS not in found["hostcb"]["growing"]


PLACES = [20_000.0 * number for number in range(60)]


def slope(values: list[float], **more: float) -> Slope:
    found = slope_of(PLACES[: len(values)], values, **more)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_found_in_noise_and_noise_is_no_leak(seed: int) -> None:
    """56 bytes an event are a quarter of the noise from one sample to the next; now and then a sample is far off."""
    drawn = random.Random(seed)
    noise = [1e9 + drawn.gauss(0, 5e6) + (5e7 if drawn.random() < 0.05 else 0) for _ in PLACES]
    assert slope(noise).low <= 0.0
    leak = slope([value + 56.0 * place for value, place in zip(noise, PLACES, strict=True)])
    assert 0.0 < leak.low <= 56.0 <= leak.high


def test_what_fills_and_stays_does_not_grow() -> None:
    """As caches do, before the warm-up is over."""
    assert slope([min(float(number), 15.0) for number in range(60)]) == Slope(0.0, 0.0, 0.0)
    filling = [min(place, PLACES[50]) for place in PLACES]
    assert slope(filling).low > 0.0
    assert slope(filling, first=PLACES[50]).low <= 0.0
    assert slope_of(PLACES[:LEAST_SAMPLES], [1.0] * LEAST_SAMPLES) is None
    # Two samples at each place, with nothing in between.
    assert slope_of(sorted(PLACES * 2), [1.0] * 120) == Slope(0.0, 0.0, 0.0)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc")
def test_memory_that_the_c_library_keeps_free_does_not_count(soak: Soaker) -> None:
    """Else the resident memory of a soak rises for a long time with nothing leaked."""
    program, freed = "freeing_threads", 6 * 12.0
    kept = run_program(f"{program}.py", devices=None).json()
    assert kept > freed / 2, "this C library keeps nothing, so this test shows nothing"
    code, _, errors = soak("--implementation", program)
    assert code == 2
    assert float(errors.splitlines()[0]) < freed / 4


# The verdict --------------------------------------------------------------------------------------


def found_of(values: list[dict[str, float]]) -> Found:
    return Found(Record(), [(10_000 * number, each) for number, each in enumerate(values)], 0, 60.0)


def test_each_series_that_grows_fails_the_soak() -> None:
    flat = dict.fromkeys(ALLOWED, 100.0)
    soak = found_of([flat] * 20)
    assert soak.exit_code == 0
    assert "nothing grows" in soak.summary()
    assert "too short to say whether anything grows" in found_of([flat] * 3).summary()
    for name, allowed in ALLOWED.items():
        # One more in a thousand events; of memory as much as an object.
        each = (0.001 + 4 * allowed) * 10_000
        soak = found_of([{**flat, name: 100.0 + each * number} for number in range(20)])
        assert (soak.growing, soak.exit_code) == ([name], 1)
        assert f"FAILED: growth: {name}" in soak.summary()


def test_an_anomaly_fails_the_soak() -> None:
    soak = found_of([])
    soak.record.note("lost", "run 7")
    assert soak.exit_code == 1
    assert "FAILED: lost: run 7" in soak.summary()


# The process --------------------------------------------------------------------------------------

HANGING = """
from conformance.soak.doing import Doer
def hang_for_ever(doer):
    threading.Event().wait()
Doer._run = hang_for_ever
"""
CRASHING = """
from conformance.soak.doing import Doer
def abort(doer):
    os.abort()
Doer.end_round = abort
"""


def test_a_process_that_cannot_begin(soak: Soaker) -> None:
    code, output, errors = soak("--implementation", "jax")
    assert (code, output) == (2, "")
    assert errors == "ERROR: a soak needs id_tap, call, barrier_wait, and jax lacks id_tap, call, barrier_wait\n"


def test_a_hang_has_the_stacks_and_the_programs(soak: Soaker, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(IMPLEMENTATION + HANGING)
    code, _, errors = soak("--implementation", "hanging", "--deadline", "12")
    assert code == 1
    assert "nothing goes on; programs that are not over:" in errors
    assert "in hang_for_ever" in errors[errors.index("Timeout (") :]


def test_a_crash_has_its_signal_and_the_stacks(soak: Soaker, tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(IMPLEMENTATION + CRASHING)
    code, _, errors = soak("--implementation", "crashing")
    assert code == -signal.SIGABRT
    assert "in abort" in errors[errors.index("Fatal Python error: Aborted") :]


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupt_ends_it_with_what_was_checked() -> None:
    command = [sys.executable, "-m", "conformance", "soak", "--devices", "2"]
    env, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    process = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("a soak of hostcb with JAX ")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.startswith("interrupted: ")) == (0, True), output + errors
    assert "every callback was right" in output
