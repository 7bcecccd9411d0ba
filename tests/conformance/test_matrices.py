"""An array of Slurm jobs runs the shards of a plan and joins their results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import suite_runs

pytestmark = pytest.mark.contract("C40")

SLURM = suite_runs.ROOT / "ci" / "matrix" / "slurm.sh"


@pytest.mark.thorough
def test_an_array_of_slurm_runs_its_shards_and_joins_them(tmp_path: Path) -> None:
    # Arrays may begin anywhere.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = suite_runs.environment(tmp_path, PATH=path, SLURM_ARRAY_TASK_MIN="4", SLURM_ARRAY_TASK_COUNT="2")

    def job(*arguments: str, **more: str) -> str:
        ended = subprocess.run(
            ["bash", str(SLURM), *arguments], cwd=tmp_path, env=own | more,
            capture_output=True, text=True, timeout=suite_runs.DEADLINE, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    cells = suite_runs.cells("implementation_fakes:GOOD", "id_tap", "call")
    for task in ("4", "5"):
        job("-n", "1", "--expectations", os.devnull, *cells, SLURM_ARRAY_TASK_ID=task)
    assert "2 of 2 cells passed" in job("--merge")
    assert (tmp_path / "results" / "page.html").exists()
    # What a machine leaves that stopped before the end: the job is put into the queue again, and goes on.
    shard = tmp_path / "shards" / "shard-1"
    (shard / "conformance-cpu.json").unlink()
    journal = shard / "journal-cpu.jsonl"
    journal.write_text(
        "".join(line for line in journal.read_text().splitlines(keepends=True) if '"finished"' not in line)
    )
    job("-n", "1", "--expectations", os.devnull, *cells, SLURM_ARRAY_TASK_ID="4")
    assert suite_runs.report_in(shard)["exit_code"] == 0
