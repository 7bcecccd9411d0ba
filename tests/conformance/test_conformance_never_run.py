"""The page of the cells that no hardware has run (ci/never_run.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from results_fakes import cell, write
from subprocesses import ROOT

from conformance.planning.cells import parse_cell
from conformance.reports.results import load_results

sys.path.insert(0, str(ROOT / "ci"))

import never_run

pytestmark = pytest.mark.contract("C30")


def test_what_was_lowered_or_is_missing_has_never_run(tmp_path: Path) -> None:
    ids = [f"hostcb/{name}/jit/tpu-1dev" for name in ("id_tap", "call", "id_print")]
    plan = [parse_cell(one) for one in ids]
    write(tmp_path, cell(f"{ids[1]}@lower"), platform="tpu", depth="lower")
    (tmp_path / "conformance-tpu.json").rename(tmp_path / "conformance-tpu@lower.json")
    write(tmp_path, cell(ids[0]), cell(ids[2], verdict="missing", standing="unexpected"), platform="tpu")
    runs = load_results(tmp_path)
    assert len(runs) == 2
    assert never_run.never_run(plan, runs) == plan[1:]
    page = never_run.page({"tpu": plan}, runs)
    assert "| tpu | 3 | 1 | 2 |" in page
    assert "| `hostcb/call` | 1 |" in page
