"""The benchmarks: that their arithmetic is right, with made-up figures, and that each runs. Nothing is timed here."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    busy,
    devices,
    eager,
    interval,
    large,
    loop,
    matrix,
    measuring,
    memory,
    overlap,
    parts,
    picture,
    results,
    running,
    single,
    staging,
    training,
)
from benchmarks import rows as rows_module
from benchmarks.__main__ import DEFAULT, MODULES
from benchmarks.rows import Row, compared, worsened

ABOUT = {"jax": "1.2.3", "python": "3.0", "cpus": 2, "date": "2030-01-02T03:04:05+00:00"}


def made_up(ratio: float = 0.5, spread: float = 0.1, target: float | None = 1.0, what: str = "ours") -> Row:
    """A row whose quartiles are `spread` away from its ratio."""
    low, high = ratio - spread, ratio + spread
    return Row("made up", what, "theirs", "us", 10 * ratio, 10.0, ratio, low, high, ratio, target)


# The arithmetic --------------------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # In the last round the machine was busy, which fell on both.
    row = compared("made up", "ours", "theirs", [1, 2, 3, 2, 200], [2, 4, 12, 2, 400], 0.5)
    assert (row.low, row.ratio, row.high) == (0.5, 0.5, 0.5)
    assert (row.ours, row.theirs, row.best) == (2, 4, 0.5)


def test_the_spread_is_that_of_the_quartiles() -> None:
    row = compared("made up", "ours", "theirs", [1, 2, 3, 4, 5], [1, 1, 1, 1, 1], None)
    assert (row.low, row.ratio, row.high) == (2, 3, 4)


def test_one_round_has_no_spread() -> None:
    row = compared("made up", "ours", "theirs", [3], [2], None)
    assert (row.low, row.ratio, row.high, row.best) == (1.5, 1.5, 1.5, 1.5)


def test_series_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        compared("made up", "ours", "theirs", [1, 2], [1], None)


@pytest.mark.parametrize(
    ("ratio", "target", "verdict"), [(1.0, 1.0, "met"), (1.01, 1.0, "MISSED"), (9.0, None, "-")], ids=str
)
def test_a_target_may_be_reached_but_not_passed(ratio: float, target: float | None, verdict: str) -> None:
    assert made_up(ratio, target=target).verdict == verdict


@pytest.mark.parametrize(
    ("old", "new", "worse"),
    [
        (made_up(1.0, 0.1), made_up(1.19, 0.1), False),
        (made_up(1.0, 0.1), made_up(1.21, 0.1), True),
        (made_up(1.0, 0.0), made_up(1.0 + 0.9 * rows_module.BETWEEN_PROCESSES, 0.0), False),
        (made_up(1.0, 0.0), made_up(1.0 + 1.1 * rows_module.BETWEEN_PROCESSES, 0.0), True),
        (made_up(1.0, 0.0), made_up(0.1, 0.0), False),
    ],
    ids=["within the spread", "beyond it", "within that of processes", "beyond that", "better"],
)
def test_worse_is_by_more_than_the_spread_of_both(old: Row, new: Row, worse: bool) -> None:
    assert worsened(old, new) is worse


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234"), (56.78, "56.8"), (5.678, "5.68"), (0.1234, "0.123"), (0.01234, "0.012")]
)
def test_figures_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert results.figure(value) == text


def test_each_program_has_its_turn_in_each_round() -> None:
    calls: list[str] = []
    programs = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    times = measuring.measure(programs, rounds=3, callbacks=1)
    assert {len(series) for phases in times.values() for series in phases.values()} == {3}
    # Forwards, backwards, forwards; after what warms them up.
    turns = "".join(calls).replace("aaaab", "b", 1).lstrip("b")
    assert [turn[0] for turn in _runs(turns)] == ["a", "b", "a", "b"], _runs(turns)[:8]


def test_no_barrier_comes_between_the_runs_that_warm_a_program_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each would wake the thread of the taps' queue, and so would the next slice have too few runs.
    calls: list[str] = []
    monkeypatch.setattr(measuring, "barrier", lambda: calls.append("barrier"))
    measuring.measure({"a": lambda: calls.append("run")}, rounds=1, callbacks=1)
    assert calls[:5] == [*["run"] * 4, "barrier"]


def _runs(text: str) -> list[str]:
    """The text cut where the letter changes."""
    cut: list[str] = []
    for letter in text:
        if cut and cut[-1][0] == letter:
            cut[-1] += letter
        else:
            cut.append(letter)
    return cut


# What a run leaves -----------------------------------------------------------------------------------------------


def test_the_json_file_is_what_the_page_says(tmp_path: Path) -> None:
    rows = [made_up(), made_up(2.0, what="slow"), made_up(target=None, what="floor")]
    results.write(tmp_path / "a.json", rows, results.environment())
    written = json.loads((tmp_path / "a.json").read_text())
    page = (Path(running.ROOT) / "docs" / "benchmarks.md").read_text()
    for field in (*written, *written["environment"], *written["rows"][0]):
        assert f"`{field}`" in page, f"docs/benchmarks.md does not describe the field {field}"
    assert [row["verdict"] for row in written["rows"]] == ["met", "MISSED", "-"]
    assert results.read(tmp_path / "a.json") == rows


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 99, "rows": []}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match="schema 1"):
        results.read(tmp_path / "other.json")


def test_the_picture_is_well_formed_and_shows_what_has_a_target() -> None:
    rows = [made_up(what="a <b> & c"), made_up(7.0, what="slow"), made_up(target=None, what="floor")]
    root = ElementTree.fromstring(picture.drawn(rows, ABOUT))
    namespace = "{http://www.w3.org/2000/svg}"
    bars = root.findall(f"{namespace}rect")
    assert [bar.get("class") for bar in bars] == ["met", "missed"]
    texts = [text.text for text in root.findall(f"{namespace}text")]
    assert rows[0].name in texts and rows[2].name not in texts
    # A bar that is cut off still ends within the picture.
    assert all(float(bar.get("x", 0)) + float(bar.get("width", 0)) <= picture.WIDTH for bar in bars)


def test_the_table_has_a_line_for_each_row() -> None:
    lines = results.table([made_up(), made_up(2.0, what="slow")]).splitlines()
    assert [line.split()[-1] for line in lines] == ["verdict", "met", "MISSED"]


# The command line ------------------------------------------------------------------------------------------------


def module(run: Callable[..., list[Row]]) -> Any:
    """Something that passes for a benchmark."""
    return types.SimpleNamespace(__doc__="Made up.", run=run)


def ended(*rows: Row, arguments: tuple[str, ...] = ()) -> int:
    """The exit status of a run that measures `rows`."""
    return running.main({"made": module(lambda rounds=1: [*rows])}, arguments, ["made"])


def test_the_exit_status_says_whether_all_targets_are_met() -> None:
    assert ended(made_up(), made_up(target=None)) == 0
    assert ended(made_up(), made_up(2.0)) == 1


def test_a_benchmark_that_fails_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(rounds: int = 1) -> list[Row]:
        raise RuntimeError("no such thing")

    modules = {"bad": module(fail), "good": module(lambda rounds=1: [made_up(what="measured all the same")])}
    assert running.main(modules, [], ["bad", "good"]) == 1
    out, err = capsys.readouterr()
    assert "measured all the same" in out and "FAILED to run: bad" in out and "no such thing" in err


def test_only_what_is_asked_for_is_run_with_the_rounds_that_are_asked_for() -> None:
    asked: list[tuple[str, int]] = []

    def noted(name: str) -> Any:
        return module(lambda rounds=1: asked.append((name, rounds)) or [])

    modules = {name: noted(name) for name in ("a", "b", "c")}
    assert running.main(modules, ["--only", "b", "--rounds", "7"], ["a", "b"]) == 0
    assert running.main(modules, [], ["a", "b"]) == 0
    assert asked == [("b", 7), ("a", 1), ("b", 1)]


def test_a_comparison_names_what_became_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, compare = tmp_path / "old.json", ("--compare", str(tmp_path / "old.json"))
    assert ended(made_up(2.0), made_up(what="other"), arguments=("--json", str(old))) == 1
    # The target is missed as it was before, which is not the comparison's business; what is new has nothing to compare.
    assert ended(made_up(2.05), made_up(9.0, what="new"), arguments=compare) == 0
    assert ended(made_up(2.0), made_up(0.9, what="other"), arguments=compare) == 1
    out = capsys.readouterr().out
    assert "WORSE made up: other / theirs: 0.5 (0.4 to 0.6) is now 0.9 (0.8 to 1)" in out, out


def test_a_file_to_compare_with_is_read_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="schema"):
        running.main(
            {"made": module(lambda rounds=1: pytest.fail("measured"))},
            ["--compare", f"{tmp_path}/other.json"],
            ["made"],
        )


def test_both_files_are_written(tmp_path: Path) -> None:
    assert ended(made_up(), arguments=("--json", f"{tmp_path}/a.json", "--svg", f"{tmp_path}/a.svg")) == 0
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert results.read(tmp_path / "a.json") == [made_up()]


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="No module named"):
        running.in_process("benchmarks.missing")


def test_the_matrix_alone_has_to_be_asked_for() -> None:
    assert set(MODULES) - set(DEFAULT) == {"matrix"}
    assert all(module.__doc__ for module in MODULES.values())


# Each runs -------------------------------------------------------------------------------------------------------

SMALL: dict[str, Callable[[], list[Row]]] = {
    "busy": lambda: busy.run(rounds=1, steps=10),
    "training": lambda: training.run(rounds=1, steps=2),
    "interval": lambda: interval.run(rounds=1, work=4000),
    "loop": lambda: loop.run(rounds=2),
    "single": lambda: single.run(rounds=2),
    "eager": lambda: eager.run(rounds=2),
    "large": lambda: large.run(rounds=2, sizes=(1, 2), width=64, kibibytes=(4096,)),
    "parts": lambda: parts.run(rounds=2),
    "overlap": lambda: overlap.run(rounds=1, steps=3),
    "devices": lambda: devices.run(rounds=1, steps=3, counts=(1, 2)),
    "staging": lambda: staging.run(rounds=1, count=3),
    "memory": lambda: memory.run(rounds=1, budget=1, taps=2),
    "matrix": lambda: matrix.run(options=["--devices", "1", "-k", "hostcb/id_tap/jit/cpu-1dev"]),
}


# Those that take seconds each.
SLOW = ("matrix", "memory", "devices", "training", "large")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else []) for name in MODULES]
)
def test_each_benchmark_runs(name: str) -> None:
    if name == "busy" and shutil.which("cc") is None:
        pytest.skip("its pauses need a C compiler")
    measured = SMALL[name]()
    assert measured, "it should have measured something"
    assert {row.benchmark for row in measured} == {name}
    assert len({row.name for row in measured}) == len(measured), "rows are known by their names from run to run"
    for row in measured:
        assert all(math.isfinite(value) for value in dataclasses.astuple(row) if isinstance(value, float)), row


def test_calibration_comes_to_an_end() -> None:
    assert overlap.calibrated(seconds=1e-5, tries=2) >= 1
