"""The job matrices of services: what they run are the suite's commands, and Slurm's script runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cli import commands

pytestmark = pytest.mark.contract("C40")

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "ci" / "matrix"
GITHUB = ROOT / ".github" / "workflows" / "conformance.yml"
SLURM = MATRIX / "slurm.sh"


@pytest.mark.parametrize("name", ["gitlab.yml", "slurm.sh"])
def test_the_commands_of_a_matrix_are_those_of_the_suite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (MATRIX / name).read_text()
    for placeholder, value in (
        ("$CI_NODE_INDEX/$CI_NODE_TOTAL", "3/8"),
        ("$number/$SLURM_ARRAY_TASK_COUNT", "3/8"),
        ('"${resume[@]}"', "--resume"),
        ("$SELECTION", "--platform cpu"),
        ('"$@"', "--platform cpu"),
        ("${RESULTS:-results}", "results"),
    ):
        text = text.replace(placeholder, value)
    found = re.findall(r"python -m conformance ((?:run|merge|report) .*?)(?: \|\||$)", text, re.MULTILINE)
    assert {line.split()[0] for line in found} == {"run", "merge", "report"}
    for line in found:
        parsed = commands.parsed(shlex.split(line))
        if parsed.command == "run":
            assert str(parsed.shard) == "3/8"


def test_the_jobs_of_github_give_the_options_of_the_suite_to_the_sessions() -> None:
    text = GITHUB.read_text()
    for variable, value in (("$SELECTION", "-k ordered"), ("$NUMBER", "3"), ("$SHARDS", "8")):
        text = text.replace(variable, value)
    found = dict(re.findall(r"nox -s (\S+) -- (.*)", text))
    assert {*found} == {"conformance-cpu", "conformance-lower", "conformance-report"}
    for session in ("conformance-cpu", "conformance-lower"):
        parsed = commands.parsed(["run", *shlex.split(found[session])])
        assert parsed.results.parent == Path("shards")
    assert str(commands.parsed(["run", *shlex.split(found["conformance-cpu"])]).shard) == "3/8"


def test_the_matrix_of_gitlab_is_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    gitlab = yaml.safe_load((MATRIX / "gitlab.yml").read_text())
    assert gitlab["conformance"]["parallel"] == 8
    assert gitlab["merge"]["needs"] == ["conformance"]


def test_an_array_of_slurm_runs_its_shards_and_joins_them(tmp_path: Path) -> None:
    known = tmp_path / "none.toml"
    known.touch()
    # Arrays may begin anywhere.
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}",
        "SLURM_ARRAY_TASK_MIN": "4",
        "SLURM_ARRAY_TASK_COUNT": "2",
    }

    def job(*arguments: str, **more: str) -> str:
        ended = subprocess.run(
            ["bash", str(SLURM), *arguments],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    cells = [f"--cell=implementation_fakes:GOOD/{name}/eager/cpu-1dev" for name in ("id_tap", "call", "call_no_result")]
    for task in ("4", "5"):
        job("-n", "1", "--expectations", str(known), *cells, SLURM_ARRAY_TASK_ID=task)
    assert "3 of 3 cells passed" in job("--merge")
    assert (tmp_path / "results" / "page.html").exists()
    # What a machine leaves that stopped before the end: the job is put into the queue again, and goes on.
    shard = tmp_path / "shards" / "shard-1"
    (shard / "conformance-cpu.json").unlink()
    journal = shard / "journal-cpu.jsonl"
    journal.write_text(
        "".join(line for line in journal.read_text().splitlines(keepends=True) if '"finished"' not in line)
    )
    job("-n", "1", "--expectations", str(known), *cells, SLURM_ARRAY_TASK_ID="4")
    assert json.loads((shard / "conformance-cpu.json").read_text())["exit_code"] == 0
