"""The hand-overs of a cell's taps: recorded on request alone, and arrows in the trace of the cell."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest
from implementation_fakes import IoCallback

from conformance.cli.commands import main
from conformance.implementations.hostcb import IMPLEMENTATION
from conformance.implementations.jax import IMPLEMENTATION as OF_JAX
from conformance.oracle.enqueue_times import Enqueue, TracedRun
from conformance.oracle.history import Event, History
from conformance.planning.cells import parse_cell
from conformance.reports.results import load_results
from conformance.worker import __main__ as worker
from conformance.worker.enqueue_times import recorded, with_enqueue_times

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


def test_each_queued_tap_of_a_real_cell_has_an_arrow(tmp_path: Path) -> None:
    cell = "hostcb/id_tap/scan/cpu-2dev"
    assert main(["run", "-n", "1", "--results", str(tmp_path), "--cell", cell, "--histories"]) == 0
    ((record,),) = (run.cells for run in load_results(tmp_path))
    assert record.verdict == "pass"
    assert record.history and all(each.handed_over for each in record.history)
    assert main(["report", str(tmp_path), "--trace", str(tmp_path / "one.json"), "--cell", cell]) == 0
    assert check_arrows(tmp_path / "one.json") == len(record.history)


def test_an_event_belongs_to_the_innermost_run_of_its_thread() -> None:
    events = tuple(
        Event(number, "first", (), thread=thread, begin=begin, end=end)
        for number, (thread, begin, end) in enumerate([(1, 22, 48), (1, 31, 39), (2, 22, 48), (1, 60, 61)])
    )
    inner, other = TracedRun(1, 30, 40, None), TracedRun(2, 20, 50, None)
    found = with_enqueue_times(History(events, 99), [TracedRun(1, 20, 50, HANDED), inner, other])
    assert [each.handed_over for each in found.events] == [HANDED, None, None, None]
    assert found.barrier_returned == 99


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


class FailsToTrace(IoCallback):
    """Its traces fail at their begin or at their end."""

    def __init__(self, fails: str) -> None:
        super().__init__(ordered=True)
        self.fails = fails

    @contextmanager
    def traced_runs(self) -> Iterator[list[TracedRun]]:
        if self.fails == "begin":
            raise OSError("planted")
        yield []
        if self.fails == "end":
            raise OSError("planted")


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_a_failed_trace_is_no_verdict(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation: Any = FailsToTrace(fails)
    reports = io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"do": "run", "cell": TAP.id})))
    worker._serve(reports, jax.devices()[:1], implementation, True)
    outcome = json.loads(reports.getvalue().splitlines()[-1])["outcome"]
    assert outcome["verdict"] == "harness_error"
    assert "EnqueueTimesError: the trace" in outcome["witness"] and "OSError: planted" in outcome["witness"]
