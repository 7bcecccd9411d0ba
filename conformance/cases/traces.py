"""Fault cells of `hostcb.trace` and of `hostcb.doctor`: no other cell reads what they write."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, error_of, unequal
from .harness.registry import planted

VICTIM_SECONDS = 60
SOON_SECONDS = 0.1
BEGUN_SECONDS = 15


def library(bench: Bench) -> Any:
    """The module whose functions these are; no other implementation has them."""
    implementation: Any = bench.implementation
    return implementation.namespace


_missing = partial(unequal, "trace", Stage.CALLBACK)


@planted("jit pmap", "id_tap call", "H22")
def is_traced(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: each run is a slice with its kind, its program and its operands, on the track of its device."""

    def shown_function(operand: Any) -> Any:
        result = np.asarray(operand) + np.float32(1)
        # The function may change its operand; the trace has the values that it got.
        operand[...] = -1
        return result

    compiled = bench.applying(callback, shown_function)
    # Programs that were compiled before are recorded as well.
    jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    with tempfile.TemporaryDirectory() as folder:
        file, values = Path(folder) / "one.json", Path(folder) / "values.json"
        with library(bench).trace(file), library(bench).trace(values, values=True):
            for _ in range(2):
                jax.block_until_ready(compiled(bench.operand))
        bench.implementation.barrier()
        plain, events = json.loads(file.read_text()), json.loads(values.read_text())
    jax.block_until_ready(compiled(bench.operand))
    bench.implementation.barrier()
    return _check_events(bench, callback, plain, False) + _check_events(bench, callback, events, True)


def _check_events(bench: Bench, callback: Callback, events: list[dict[str, Any]], values: bool) -> list[Anomaly]:
    slices = [event for event in events if event["ph"] == "X"]
    runs = [event for event in slices if event["cat"] != "hand-over"]
    hand_overs = [event for event in slices if event["cat"] == "hand-over"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    wanted = 2 * bench.callbacks_per_run
    anomalies = _missing("the number of runs", len(runs), wanted)
    queued = wanted if callback.function == "id_tap" else 0
    anomalies += _missing("the number of hand-overs", len(hand_overs), queued)
    arrows = [sorted(event["id"] for event in events if event["ph"] == end) for end in "sf"]
    anomalies += _missing("the ends of arrows", arrows[0], arrows[1]) + _missing("arrows", len(arrows[0]), queued)
    devices = bench.devices if bench.layout == "pmap" else bench.devices[:1]
    names = {tracks.get(run["tid"]) for run in runs}
    anomalies += _missing("the tracks", sorted(map(str, names)), [f"{one.platform}:{one.id}" for one in devices])
    for run in runs:
        about = run["args"]
        anomalies += _missing("the function", "shown_function" in run["name"] or callback.function == "id_tap", True)
        anomalies += _missing("the kind", run["cat"], callback.function)
        anomalies += _missing("the operands", about["operands"], [f"float32[{bench.operand.shape[-1]}]"])
        anomalies += _missing("whether there are values", "values" in about, values)
        if values:
            rows = [[repr(row)] for row in bench.operand.reshape(-1, bench.operand.shape[-1])]
            anomalies += [] if about["values"] in rows else _missing("the values", about["values"], rows)
        anomalies += _missing("a program", bool(about["program"]), True)
        anomalies += _missing("what is in its name beside letters", re.sub(r"[\w.<>-]", "", about["program"]), "")
        anomalies += _missing("a run that took time", run["dur"] > 0 and run["ts"] >= 0, True)
    sequence = [run["args"]["sequence"] for run in runs]
    return anomalies + _missing("the order of the runs", sorted(sequence), sorted({*sequence}))


@planted("jit", "id_tap", "H22")
def arrows_outside_jit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: of taps outside jit, of no, one and two arrays, each has an arrow of its own."""
    operands = ((), bench.operand, (bench.operand, bench.operand))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with library(bench).trace(file):
            for operand in operands * 2:
                bench.implementation.tap(lambda *_: None, operand)
        events = json.loads(file.read_text())
    begun, ended = ([event["id"] for event in events if event["ph"] == end] for end in "sf")
    anomalies = _missing("the number of arrows", len(begun), 2 * len(operands))
    anomalies += _missing("arrows with a number of their own", len({*begun}), len(begun))
    anomalies += _missing("the ends of arrows", sorted(ended), sorted(begun))
    return anomalies + check_quiet_barrier(bench, "after a trace of taps outside jit")


@planted("jit", "id_tap call", "H22")
def failure_is_traced(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: the slice of a run that failed has the error, and the failure is left for the next barrier."""

    def failing(operand: Any) -> Any:
        raise ValueError("planted failure")

    compiled = bench.applying(callback, failing)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with library(bench).trace(file):
            error_of(lambda: compiled(bench.operand))
        events = json.loads(file.read_text())
    runs = [event for event in events if event["ph"] == "X" and event["cat"] != "hand-over"]
    errors = ["planted failure" in str(run["args"].get("error", "")) for run in runs]
    anomalies = _missing("whether the runs failed", errors, [True])
    try:
        bench.implementation.barrier()
    except bench.implementation.callback_exception:
        return anomalies
    return [*anomalies, Anomaly("swallowed error", Stage.BARRIER, "the end of the trace took the failure away")]


@planted("jit", "id_tap", "H22")
def trace_of_a_block_that_raises(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: an exception ends the trace of its block: the file has what still waited then, and nothing of later."""
    begun, release = threading.Event(), threading.Event()

    def held(operand: Any, transforms: Any) -> None:
        begun.set()
        release.wait(2 * BEGUN_SECONDS)

    compiled = bench.compile(lambda x: bench.implementation.tap(held, x))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        try:
            with library(bench).trace(file):
                for _ in range(3):
                    compiled(bench.operand)
                begun.wait(BEGUN_SECONDS)
                # One-sided: a trace that does not wait for the taps may end before it.
                threading.Timer(SOON_SECONDS, release.set).start()
                raise ValueError("planted failure")
        except ValueError:
            release.set()
            compiled(bench.operand)
        bench.implementation.barrier()
        events = json.loads(file.read_text())
    runs = [event for event in events if event["ph"] == "X" and event["cat"] != "hand-over"]
    return _missing("the number of runs", len(runs), 3)


@planted("jit", "id_tap", "H22")
def trace_of_an_exit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: a function that raises SystemExit has failed, and the trace says so, as of any other exception."""

    def host(operand: Any, transforms: Any) -> None:
        if float(operand) < 0:
            raise SystemExit("planted failure")

    compiled = jax.jit(lambda x: bench.implementation.tap(host, x))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        with library(bench).trace(file):
            for number in (1, -1, 2):
                jax.block_until_ready(compiled(np.float32(number)))
        events = json.loads(file.read_text())
    error_of(bench.implementation.barrier)
    runs = [event for event in events if event["ph"] == "X" and event["cat"] != "hand-over"]
    errors = ["planted failure" in str(run["args"].get("error", "")) for run in runs]
    return _missing("whether the runs failed", errors, [False, True, False])


@planted("jit", "id_tap call", "H22 H29", functions="stats", isolated=True)
def trace_beside_others(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: traces one in the other, each with or without values, in files of before, and beside statistics."""
    compiled = bench.applying(callback, lambda operand: np.asarray(operand) + np.float32(1))

    def run(times: int = 1) -> None:
        for _ in range(times):
            compiled(bench.operand)
        bench.implementation.barrier()

    def runs_in(file: Path) -> list[bool]:
        """Of each run whether it has values."""
        events = json.loads(file.read_text())
        slices = [event for event in events if event["ph"] == "X" and event["cat"] != "hand-over"]
        return ["values" in event["args"] for event in slices]

    trace = library(bench).trace
    counted = library(bench).stats()
    with tempfile.TemporaryDirectory() as folder:
        outer, inner, later = (Path(folder) / "later" / f"{name}.json" for name in ("outer", "inner", "later"))
        refused = error_of(lambda: trace(later).__enter__())
        later.parent.mkdir()
        with trace(outer):
            with trace(inner, values=True):
                run()
            run()
        run()
        anomalies = _missing("the runs of the outer one", runs_in(outer), [False, False])
        anomalies += _missing("the runs of the inner one", runs_in(inner), [True])
        # The same file again, at first where it could not be written, and then over a longer one.
        for times in (5, 1):
            with trace(later):
                run(times)
            anomalies += _missing("the runs in a file of before", runs_in(later), [False] * times)
        run()
    if not isinstance(refused, OSError):
        anomalies.append(Anomaly("swallowed error", Stage.TRACE, f"a file in a missing folder came to {refused!r}"))
    of = (library(bench).stats() - counted)[bench.devices[0]]
    ran = of.taps_run + sum(of.calls.values())
    return anomalies + _missing("beside it, statistics with callbacks that ran", ran, 10)


@planted("jit", "id_tap", "H22")
def trace_refuses(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H22: no path, a file that cannot be written, the same file twice, and a begin inside a callback."""
    trace = library(bench).trace

    def begin(path: Any) -> Exception | None:
        try:
            with trace(path):
                pass
        except Exception as error:
            return error
        return None

    found: dict[str, Exception | None] = {"TypeError": begin(3)}
    with tempfile.TemporaryDirectory() as folder:
        found["OSError"] = begin(Path(folder) / "missing" / "trace.json")
        file = Path(folder) / "trace.json"
        with trace(file):
            found["ValueError"] = begin(file)
        inside: list[Exception | None] = []
        bench.compile(lambda x: bench.implementation.tap(lambda *_: inside.append(begin(file)), x))(bench.operand)
        bench.implementation.barrier()
        found["RuntimeError"] = inside[0] if inside else None
    kinds = {"TypeError": TypeError, "OSError": OSError, "ValueError": ValueError, "RuntimeError": RuntimeError}
    return [
        Anomaly("swallowed error", Stage.TRACE, f"a trace must be refused with {name}, came {error!r}")
        for name, error in found.items()
        if not isinstance(error, kinds[name])
    ]


WAYS_OF_HAND_OVER = ("in C, without the interpreter lock", "was not built", "turns it off", "was built for")
"""H24: in C, or the installation or its environment is the reason; a supported JAX is none."""


@planted("jit", "id_tap", "H21 H24", isolated=True)
def doctor_tells(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H21: the report has the versions, the devices with their transports, and each part of JAX with its state."""
    report = library(bench).doctor()
    ended = subprocess.run(
        [sys.executable, "-m", library(bench).__name__],
        capture_output=True,
        text=True,
        timeout=VICTIM_SECONDS,
        check=False,
    )
    text = str(report)
    wanted = [f"JAX {jax.__version__}", f"NumPy {np.__version__}", "views: ", "one_of_many: ", "parts: ", "in_place: "]
    wanted += [str(device) for device in bench.devices]
    anomalies = [
        Anomaly("report", Stage.TRACE, f"the report lacks {words!r}: {text[:500]}")
        for words in wanted
        if words not in text
    ]
    if not report.complete or report.lost or "things that hostcb uses hold" not in text:
        anomalies.append(
            Anomaly("report", Stage.TRACE, f"on a supported JAX the report says that {report.lost} are lost")
        )
    hand_over = next((line for line in text.splitlines() if line.startswith("the hand-over: ")), "none")
    if not any(words in hand_over for words in WAYS_OF_HAND_OVER):
        witness = f"on a supported JAX taps need not wait for the interpreter lock, but the report says {hand_over!r}"
        anomalies.append(Anomaly("report", Stage.TRACE, witness))
    if "not imported yet" in text:
        anomalies.append(Anomaly("report", Stage.TRACE, f"the report leaves parts of JAX out: {text[-1000:]}"))
    states = [line for line in text.splitlines() if line.startswith("  jax")]
    if len(states) < 20 or states != [line for line in ended.stdout.splitlines() if line.startswith("  jax")]:
        anomalies.append(
            Anomaly("report", Stage.TRACE, f"the program prints other parts of JAX: {ended.stdout[-500:]}")
        )
    if ended.returncode != 0:
        reason = f"`python -m` ended with {ended.returncode}: {summary(RuntimeError(ended.stderr[-300:]))}"
        anomalies.append(Anomaly("report", Stage.EXIT, reason))
    return anomalies
