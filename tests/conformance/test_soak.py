"""The command `soak`: short ones of hostcb and of broken ones, what grows, and what ends a soak from outside."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.subprocesses import PROGRAMS, ROOT, run_program

from conformance.cli.commands import main
from conformance.soak import c_library
from conformance.soak.found import NAME, Found
from conformance.soak.growth import ALLOWED, BLOCKS, LEAST_SAMPLES, Slope, slope_of
from conformance.soak.options import Options
from conformance.soak.watching import LOG, RefusedError, watch

pytestmark = pytest.mark.contract("C64")

SHORT = {"events": 1500, "threads": 2}
LEAKING = {"events": 10_000, "threads": 1, "acts": 2, "programs": 1, "warm_up": 0}
BROKEN = {
    "conformance.mutants:dropped": ("lost",),
    "conformance.mutants:neighbours_swapped": ("order",),
    "conformance.mutants:duplicated": ("duplicate",),
    "reusing": ("wrong operand", "torn operand", "order", "duplicate", "unexpected"),
    "conformance.mutants:early_barrier": ("lost", "early barrier", "unexpected"),
}


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
    assert not slope(noise).grows(0.0)
    leak = slope([value + 56.0 * place for value, place in zip(noise, PLACES, strict=True)])
    assert leak.grows(0.0)
    assert leak.low <= 56.0 <= leak.high


def test_what_fills_and_stays_does_not_grow() -> None:
    """As caches do, before the warm-up is over."""
    assert slope([min(float(number), 15.0) for number in range(60)]) == Slope(0.0, 0.0, 0.0, 40)
    filling = [min(place, PLACES[50]) for place in PLACES]
    assert slope(filling).grows(0.0)
    assert not slope(filling, first=PLACES[50]).grows(0.0)
    assert slope_of(PLACES[:LEAST_SAMPLES], [1.0] * LEAST_SAMPLES) is None
    # Two samples at each place, with nothing in between.
    assert slope_of(sorted(PLACES * 2), [1.0] * 120) == Slope(0.0, 0.0, 0.0, 40)


@pytest.mark.skipif(c_library.in_use() is None, reason="the C library is not glibc")
def test_memory_that_the_c_library_keeps_free_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the resident memory of a soak rises for a long time with nothing leaked."""
    program, freed = "freeing_threads", 6 * 12.0
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, PROGRAMS))))
    kept = run_program(f"{program}.py", devices=None).json()
    assert kept > freed / 2, "this C library keeps nothing, so this test shows nothing"
    with pytest.raises(RefusedError):
        watch(Options(minutes=1.0, implementation=program), tmp_path, lambda line: None)
    (grown,) = (tmp_path / LOG).read_text().splitlines()
    assert float(grown) < freed / 4


@pytest.mark.skipif(c_library.in_use() is None, reason="the C library is not glibc")
def test_what_jax_keeps_for_each_thread_that_compiles_does_not_count() -> None:
    """JAX 0.12 keeps 1.4 MB, and a soak of some minutes has new such threads all the time."""
    grown = run_program("compiling_threads.py", devices=None).json()
    assert grown["threads"] == 8
    assert abs(grown["counted"] - 8.0) < 1.0, grown


# The verdict --------------------------------------------------------------------------------------


def found_of(values: list[dict[str, float]], **more: Any) -> Found:
    samples = [{"events": 10_000 * number, "values": each} for number, each in enumerate(values)]
    report = {"events": 10_000 * len(values), "runs": 10, "samples": samples, **more}
    return Found(Options(minutes=1.0, warm_up=0), report, 60.0)


def test_each_series_that_grows_fails_the_soak() -> None:
    flat = dict.fromkeys(ALLOWED, 100.0)
    soak = found_of([flat] * 20, compiling_threads=3, bytes_for_each=1.4e6)
    assert soak.exit_code == 0
    assert "nothing grows" in soak.summary()
    assert "not counted as growth: 1.40 MB of memory for each of the 3 threads" in soak.summary()
    assert "too short to say whether anything grows" in found_of([flat] * 3).summary()
    for name, allowed in ALLOWED.items():
        # One more in a thousand events; of memory as much as an object.
        each = (0.001 + 4 * allowed) * 10_000
        soak = found_of([{**flat, name: 100.0 + each * number} for number in range(20)])
        assert (soak.growing, soak.exit_code) == ([name], 1)
        assert f"FAILED: growth: {name}" in soak.summary()


def test_an_anomaly_fails_the_soak(tmp_path: Path) -> None:
    soak = found_of([], anomalies=[{"kind": "lost", "witness": "run 7"}])
    assert soak.exit_code == 1
    assert "FAILED: lost: run 7" in soak.summary()
    soak.write(tmp_path)
    written = json.loads((tmp_path / NAME).read_text())
    assert (written["passed"], written["anomalies"]) == (False, ["lost: run 7"])


# The process --------------------------------------------------------------------------------------

STAND_IN = """
import faulthandler, json, os, sys, threading
def say(**report):
    print(json.dumps(report), flush=True)
def hang_for_ever():
    faulthandler.dump_traceback_later(0.1, exit=True)
    threading.Event().wait()
def progress():
    say(jax="1", python="3", events=5, acts=1, runs=1, rounds=0, found=0, waiting=["run 7 of thread 1: step 3"])
"""


def watched(folder: Path, program: str) -> Found:
    return watch(Options(minutes=1.0), folder, lambda line: None, ("-c", STAND_IN + program))


def test_a_process_that_cannot_begin(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no taps"):
        watched(tmp_path, "say(refused='no taps')")
    assert main(["soak", "--implementation", "jax", "--results", str(tmp_path)]) == 2


def test_a_hang_has_the_stacks_and_the_programs(tmp_path: Path) -> None:
    soak = watched(tmp_path, "progress(); hang_for_ever()")
    (anomaly,) = soak.anomalies
    assert soak.exit_code == 1
    assert anomaly.startswith("hang: nothing went on; the stacks of all threads:\nTimeout (")
    assert "in hang_for_ever" in anomaly
    assert anomaly.endswith("programs that are not over:\n  run 7 of thread 1: step 3")


def test_a_crash_has_its_signal_and_what_was_written(tmp_path: Path) -> None:
    soak = watched(tmp_path, "progress(); print('F0101 of XLA', file=sys.stderr, flush=True); os.abort()")
    (anomaly,) = soak.anomalies
    assert anomaly.startswith("crash: the process of the soak ended with SIGABRT; it wrote:\nF0101 of XLA")
    assert "run 7 of thread 1" in anomaly
    assert soak.report["events"] == 5
    assert watched(tmp_path, "progress(); say(ended=True, events=6)").anomalies == []


@pytest.mark.usefixtures("sigint_reaches_programs")
def test_an_interrupt_ends_it_with_what_was_checked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conformance", "soak", "--results", str(tmp_path), "--devices", "2"]
    env, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    process = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("a soak of hostcb with JAX ")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "interrupted: this is what was checked until then" in output
