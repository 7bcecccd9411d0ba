"""The hand-overs of a cell's taps: recorded on request alone, and arrows in the trace of the cell."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from implementation_fakes import IoCallback
from results_fakes import PASSED, event, write

from conformance.cli.commands import main
from conformance.implementations.hostcb import IMPLEMENTATION
from conformance.implementations.jax import IMPLEMENTATION as OF_JAX
from conformance.oracle.enqueue_times import Enqueue, TracedRun
from conformance.oracle.history import Event, History, Recorder
from conformance.oracle.verdicts import Verdict
from conformance.planning.cells import parse_cell
from conformance.reports.results import load_results
from conformance.worker import __main__ as worker
from conformance.worker.enqueue_times import EnqueueTimesError, recorded, with_enqueue_times
from conformance.worker.execution import run_cell

pytestmark = pytest.mark.contract("C5")

HANDED = Enqueue(7, 10, 15)
TAP = parse_cell("hostcb/id_tap/scan/cpu-1dev")


def check_arrows(path: Path) -> int:
    """Arrows begin and end where a slice of their track does, and lead forwards; returns how many there are."""
    events = json.loads(path.read_text())
    slices = {(each["tid"], each["ts"]): each for each in events if each["ph"] == "X"}
    begins = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = {each["id"]: each for each in events if each["ph"] == "f"}
    assert begins.keys() == ends.keys() and len(ends) == sum(each["ph"] in "sf" for each in events) / 2
    for number, begin in begins.items():
        handed, run = (slices[each["tid"], each["ts"]] for each in (begin, ends[number]))
        assert handed["cat"] == "hand-over" and handed["name"] == f"hand over: {run['name']}"
        assert run["args"]["sequence"] == number and handed["ts"] <= run["ts"]
    return len(begins)


@pytest.mark.parametrize("options", [["--histories"], []], ids=["histories", "plain"])
def test_each_queued_tap_of_a_real_cell_has_an_arrow(tmp_path: Path, options: list[str]) -> None:
    cell = "hostcb/id_tap/scan/cpu-2dev"
    assert main(["run", "-n", "1", "--results", str(tmp_path), "--cell", cell, *options]) == 0
    ((record,),) = (run.cells for run in load_results(tmp_path))
    assert record.verdict == "pass"
    if not options:
        assert record.history == () and "handed_over" not in (tmp_path / "conformance-cpu.json").read_text()
        return
    assert record.history and all(each.handed_over for each in record.history)
    assert main(["report", str(tmp_path), "--trace", str(tmp_path / "one.json"), "--cell", cell]) == 0
    assert check_arrows(tmp_path / "one.json") == len(record.history)


def test_hand_overs_are_on_the_track_of_their_thread(tmp_path: Path) -> None:
    taps = [event(0, 3), event(1, 3), event(2, None)]
    first, thread = taps[0]["begin"], taps[2]["thread"]
    taps[0]["handed_over"] = {"thread": 5, "begin": first - 2_000, "end": first - 1_000}
    taps[2]["handed_over"] = {"thread": thread, "begin": first - 1_000, "end": first + 500}
    write(tmp_path, PASSED | {"history": taps})
    assert main(["report", str(tmp_path), "--trace", str(tmp_path / "one.json"), "--cell", PASSED["id"]]) == 0
    assert check_arrows(tmp_path / "one.json") == 2
    events = json.loads((tmp_path / "one.json").read_text())
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    slices = [(names[each["tid"]], each["ts"], each["cat"]) for each in events if each["ph"] == "X"]
    assert sorted(slices) == [
        ("cpu:3", 2.0, "callback"),
        ("cpu:3", 9.0, "callback"),
        ("thread 1", 1.0, "hand-over"),
        ("thread 1", 16.0, "callback"),
        ("thread 2", 0.0, "hand-over"),
    ]


def test_an_event_belongs_to_the_innermost_run_of_its_thread() -> None:
    events = tuple(
        Event(number, "first", (), thread=thread, begin=begin, end=end)
        for number, (thread, begin, end) in enumerate([(1, 22, 48), (1, 31, 39), (2, 22, 48), (1, 60, 61)])
    )
    inner, other = TracedRun(1, 30, 40, None), TracedRun(2, 20, 50, None)
    found = with_enqueue_times(History(events, 99), [TracedRun(1, 20, 50, HANDED), inner, other])
    assert [each.handed_over for each in found.events] == [HANDED, None, None, None]
    assert found.barrier_returned == 99


def test_what_the_worker_reports_is_read_again(tmp_path: Path) -> None:
    tap = Event(0, "first", (np.float32(1),), handed_over=HANDED).as_json()
    plain = Event(1, "last", (np.float32(1),)).as_json()
    assert "handed_over" not in plain
    write(tmp_path, PASSED | {"history": [tap, plain]})
    ((record,),) = (run.cells for run in load_results(tmp_path))
    assert [each.handed_over for each in record.history] == [HANDED, None]


def test_a_run_that_is_not_queued_was_not_handed_over() -> None:
    probed = jax.jit(lambda x: IMPLEMENTATION.call(lambda v: v, IMPLEMENTATION.tap(lambda *_: None, x), x))

    def run() -> None:
        jax.block_until_ready(probed(jax.numpy.float32(1)))
        IMPLEMENTATION.barrier()

    _, runs = recorded(IMPLEMENTATION, run)
    tapped, called = sorted(runs, key=lambda each: each.handed_over is None)
    assert tapped.handed_over is not None and tapped.handed_over.begin <= tapped.begin <= tapped.end
    assert called.handed_over is None
    assert recorded(OF_JAX, lambda: 3) == (3, ())


class Tracing(IoCallback):
    """Counts its traces, which fail where the test wants that."""

    def __init__(self, fails: str = "") -> None:
        super().__init__(ordered=True)
        self.fails, self.traces = fails, 0

    @contextmanager
    def traced_runs(self) -> Iterator[list[TracedRun]]:
        self.traces += 1
        if self.fails == "begin":
            raise OSError("planted")
        yield []
        if self.fails == "end":
            raise OSError("planted")


def test_a_cell_is_traced_on_request_alone() -> None:
    implementation: Any = Tracing()
    for histories in (False, True):
        assert run_cell(TAP, implementation, Recorder(), jax.devices()[:1], histories).verdict is Verdict.PASS
        assert implementation.traces == histories


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_a_failed_trace_is_no_verdict(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation: Any = Tracing(fails)
    reports = io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"do": "run", "cell": TAP.id})))
    worker._serve(reports, jax.devices()[:1], implementation, True)
    outcome = json.loads(reports.getvalue().splitlines()[-1])["outcome"]
    assert outcome["verdict"] == "harness_error"
    assert "EnqueueTimesError: the trace" in outcome["witness"] and "OSError: planted" in outcome["witness"]


def test_an_error_of_the_suite_is_not_blamed_on_the_trace() -> None:
    def fails() -> None:
        raise KeyError("planted")

    implementation: Any = Tracing()
    with pytest.raises(KeyError, match="planted"):
        recorded(implementation, fails)
    broken: Any = Tracing("end")
    with pytest.raises(EnqueueTimesError, match="OSError: planted"):
        recorded(broken, lambda: 3)
