"""Shards joined: the same as one run of all cells; parts of different wholes are refused, and gaps are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import commands
from conformance.engine import preparation
from conformance.engine.options import RunOptions
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.planning.cells import parse_cell
from conformance.reports.results import load_results

pytestmark = pytest.mark.contract("C41")

NAMES = ("pure_callback", "io_callback", "debug_callback", "debug_print", "io_callback_ordered")
CELLS = [f"jax/{callback}/eager/cpu-1dev" for callback in NAMES]
INFO = {"jax": "0.12.0", "platform": "cpu", "device_count": 1, "cores": 2}
PASS, FAIL = Outcome(Verdict.PASS, seconds=0.5), Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: it", anomaly="lost")


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., Path]:
    """Writes the results of a shard, as if its cells had run."""
    known = tmp_path / "none.toml"
    known.touch()

    def write(text: str, *options: str, cells: list[str] = CELLS, folder: str = "", **outcomes: Outcome) -> Path:
        results = tmp_path / (folder or text.replace("/", "-of-"))
        results.mkdir()
        chosen = [f"--cell={cell}" for cell in cells]
        arguments = ["run", "--shard", text, "--results", str(results), "--expectations", str(known), *chosen, *options]
        run = preparation.prepare(RunOptions.of(commands.parsed(arguments)))
        for cell in run.cells:
            run._report.add(cell, outcomes.get(cell.callback_name, PASS))
        run._report.run_info = {"cpu-1dev": dict(INFO)}
        run._report.seconds, run._report.process_starts = 3.0, 1
        run._report.write(results / "conformance-cpu.json")
        lines = [{"event": "header"}, *({"event": "end", "cell": cell.id} for cell in run.cells), {"event": "finished"}]
        (results / "journal-cpu.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
        return results

    return write


def merge(out: Path, *folders: Path) -> tuple[int, dict[str, Any]]:
    code = commands.main(["merge", *map(str, folders), "--results", str(out)])
    return code, json.loads((out / "conformance-cpu.json").read_text())


def change(folder: Path, **fields: Any) -> Path:
    file = folder / "conformance-cpu.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


def test_all_shards_are_one_run(shard: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [shard(f"{number}/3", debug_print=FAIL) for number in (3, 1, 2)]
    code, data = merge(tmp_path / "out", *folders)
    assert code == data["exit_code"] == 1
    assert [cell["id"] for cell in data["cells"]] == CELLS
    assert (data["seconds"], data["process_starts"], data["problems"]) == (3.0, 3, [])
    assert [one["shard"] for one in data["merged"]] == [1, 2, 3]
    assert data["run_info"] == {"cpu-1dev": INFO}
    (run,) = load_results(tmp_path / "out")
    assert [cell.id for cell in run.unexpected] == ["jax/debug_print/eager/cpu-1dev"]
    ended = [json.loads(line)["cell"] for line in (tmp_path / "out" / "journal-cpu.jsonl").read_text().splitlines()]
    assert sorted(ended) == sorted(CELLS)
    printed = capsys.readouterr().out
    assert printed.startswith("cpu: 3 shards\n")
    assert "4 of 5 cells passed" in printed
    assert (tmp_path / "out" / "index.html").exists()
    # All readers take it.
    whole = shard("1/1", debug_print=FAIL, folder="whole")
    assert commands.main(["diff", str(whole), str(tmp_path / "out")]) == 0
    assert commands.main(["report", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert commands.main(["expect", str(tmp_path / "out")]) == 0
    assert 'cells = "jax/debug_print/eager/cpu-1dev"' in capsys.readouterr().out


def test_a_missing_shard_is_a_problem_and_its_cells_are_named(shard: Any, tmp_path: Path) -> None:
    code, data = merge(tmp_path / "out", shard("1/3"), shard("3/3"))
    missing = [cell["id"] for cell in data["cells"] if cell["verdict"] == "missing"]
    assert code == data["exit_code"] == 1
    assert missing
    count = f"{len(missing)} cell{'s' * (len(missing) > 1)}"
    assert data["problems"] == data["gaps"] == [f"shard 2/3 missing: {count}: {', '.join(missing)}"]
    assert [cell["id"] for cell in data["cells"]] == CELLS
    record = next(cell for cell in data["cells"] if cell["verdict"] == "missing")
    assert record["promises"] == list(parse_cell(record["id"]).promises)


def test_missing_cells_and_problems_of_a_shard_are_named(shard: Any, tmp_path: Path) -> None:
    gone = Outcome(Verdict.MISSING, reason="planned and never run")
    folders = [shard(f"{number}/2", io_callback=gone) for number in (1, 2)]
    change(folders[0], problems=["the run was interrupted", "cpu-1dev: hang"], gaps=["the run was interrupted"])
    code, data = merge(tmp_path / "out", *folders)
    assert code == 1
    (named,) = (problem for problem in data["problems"] if "has not run" in problem)
    assert named.endswith("/2 has not run 1 cell: jax/io_callback/eager/cpu-1dev")
    assert {"shard 1/2: the run was interrupted", "shard 1/2: cpu-1dev: hang"} < {*data["problems"]}
    assert "shard 1/2: cpu-1dev: hang" not in data["gaps"]


def test_stale_entries_are_those_of_the_whole(shard: Any, tmp_path: Path) -> None:
    folders = [shard("1/2"), shard("2/2")]
    words = "the expectation 'gone' matches no planned cell"
    for folder in folders:
        change(folder, stale_expectations=["gone"], problems=[words])
    code, data = merge(tmp_path / "out", *folders)
    assert (code, data["problems"], data["stale_expectations"]) == (1, [words], ["gone"])


def refusal(capsys: pytest.CaptureFixture[str], out: Path, *folders: Path) -> str:
    assert commands.main(["merge", *map(str, folders), "--results", str(out)]) == 2
    assert not (out / "conformance-cpu.json").exists() or out in folders
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"versions": {"jax": "0.4.31"}}, "the versions of jax are"),
        ({"options": {"repeat": 7}}, "the option repeat are"),
        ({"run_info": {"cpu-1dev": INFO | {"jax": "0.10.2"}}}, "with cpu-1dev, jax is 0.12.0 and 0.10.2"),
    ],
)
def test_parts_of_different_wholes_are_refused(
    shard: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], words: str
) -> None:
    second = change(shard("2/2"), **fields)
    said = refusal(capsys, tmp_path / "out", shard("1/2"), second)
    assert "are no shards of one run" in said
    assert words in said


def test_overlaps_and_strangers_are_refused(shard: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, first, second = tmp_path / "out", shard("1/2"), shard("2/2")
    assert "shard 1/2 is there twice" in refusal(capsys, out, first, first, second)
    other = shard("2/2", cells=CELLS[:3], folder="other")
    assert "the selections have cells: 5 and 3" in refusal(capsys, out, first, other)
    third = shard("3/3", folder="third")
    assert "they are shards of 2 and 3" in refusal(capsys, out, first, third)
    data = json.loads((first / "conformance-cpu.json").read_text())
    overlapping = change(shard("2/2", folder="overlapping"), cells=data["cells"])
    assert f"{data['cells'][0]['id']} is in" in refusal(capsys, out, first, overlapping)
    assert "is one of the folders to merge" in refusal(capsys, first, first, second)
    assert "holds no conformance-PLATFORM.json" in refusal(capsys, out, first, tmp_path / "nowhere")
    whole = change(shard("1/1", folder="whole"), shard=None)
    data = json.loads((whole / "conformance-cpu.json").read_text())
    del data["shard"]
    (whole / "conformance-cpu.json").write_text(json.dumps(data))
    assert "is of no shard" in refusal(capsys, out, first, whole)
    code, _ = merge(out, first, second)
    assert code == 0
    assert "is merged already" in refusal(capsys, tmp_path / "again", out, first)
