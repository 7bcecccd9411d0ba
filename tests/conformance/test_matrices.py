"""An array of Slurm jobs runs the shards of a plan and joins their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.contract("C40")

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "ci" / "matrix" / "slurm.sh"


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

    cells = [f"--cell=implementation_fakes:GOOD/{name}/eager/cpu-1dev" for name in ("id_tap", "call")]
    for task in ("4", "5"):
        job("-n", "1", "--expectations", str(known), *cells, SLURM_ARRAY_TASK_ID=task)
    assert "2 of 2 cells passed" in job("--merge")
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
