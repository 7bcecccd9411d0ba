"""Histories as traces for Perfetto, and the witness of a wrong order in them and in the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_reports import LOST, PASSED, event, write

from conformance.cli.commands import main
from conformance.model.worlds import ExpectedEvent
from conformance.oracle.checkers import check_order, match
from conformance.oracle.history import Event
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.reports.html import html
from conformance.reports.results import load_results

pytestmark = pytest.mark.contract("C5")

SWAPPED = LOST | {
    "id": "hostcb/id_tap/scan/cpu-8dev",
    "anomaly": "order",
    "witness": "order: cpu:3 ran #7 before #6",
    "history": [event(0, 3), event(1, 3), event(2, None), event(3, 0)],
    "evidence": [[0, 7], [1, 6]],
}


def traced(path: Path) -> tuple[list[dict[str, Any]], dict[int, str]]:
    events = json.loads(path.read_text())
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    return events, names


def test_each_cell_with_a_history_has_a_file(tmp_path: Path) -> None:
    write(tmp_path, SWAPPED, LOST, PASSED)
    assert main(["report", str(tmp_path), "--trace", str(tmp_path / "traces")]) == 0
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == [
        "hostcb_call_scan_cpu-8dev.json",
        "hostcb_id_tap_scan_cpu-8dev.json",
    ]


def test_devices_and_threads_have_tracks_and_the_witness_is_marked(tmp_path: Path) -> None:
    write(tmp_path, SWAPPED)
    file = tmp_path / "one.json"
    assert main(["report", str(tmp_path), "--trace", str(file), "--cell", SWAPPED["id"]]) == 0
    events, names = traced(file)
    slices = [each for each in events if each["ph"] == "X"]
    assert [names[each["tid"]] for each in slices] == ["cpu:3", "cpu:3", "thread 1", "cpu:0"]
    assert [each["name"] for each in slices if "witness" in each["cat"]] == ["#7 first", "#6 first"]
    assert [each["ts"] for each in slices] == [0.0, 7.0, 14.0, 21.0] and slices[0]["dur"] == 3.0
    assert [each["name"] for each in events if each["ph"] == "i"] == [SWAPPED["witness"]] * 2


def test_runs_that_overlap_have_tracks_of_their_own(tmp_path: Path) -> None:
    start = event(0, 3)["begin"]
    write(tmp_path, LOST | {"history": [event(0, 3), event(1, 3, begin=start + 1_000, end=start + 9_000)]})
    assert main(["report", str(tmp_path), "--trace", str(tmp_path / "traces")]) == 0
    _, names = traced(next((tmp_path / "traces").iterdir()))
    assert sorted(names.values()) == ["cpu:3", "cpu:3 (2)"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trace", "T", "--cell", PASSED["id"]], "has no history to trace"),
        (["--trace", "T", "--cell", "a/b/c/d"], "the results have no cell a/b/c/d"),
        (["--trace", "T"], "no cell of the results has a history"),
        (["--cell", PASSED["id"]], "--cell is for --trace"),
    ],
)
def test_what_cannot_be_traced_is_said(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, PASSED)
    named = [str(tmp_path / "T") if option == "T" else option for option in options]
    assert main(["report", str(tmp_path), *named]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ERROR: ") and said in error and error.count("\n") == 1


def test_the_page_has_the_evidence(tmp_path: Path) -> None:
    assert '"evidence":[[0,7],[1,6]]' in html(load_results(write(tmp_path, SWAPPED)))


def test_a_wrong_order_names_its_events_and_the_worker_reports_them() -> None:
    one, two = (np.float32(number) for number in (1, 2))
    expected = [ExpectedEvent("first", 0, (one,)), ExpectedEvent("last", 0, (two,))]
    recorded = [Event(5, "last", (two,), device=0), Event(6, "first", (one,), device=0)]
    (found,) = check_order(match(expected, recorded), "cpu")
    assert found.evidence == ((5, 2), (6, 1))
    outcome = Outcome(Verdict.FAIL, Stage.CALLBACK, evidence=found.evidence)
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome
