"""C43: the results of chosen cells have a folder of their own, and never replace those of a full run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import commands
from conformance.engine.options import RESULTS, SELECTION, RunOptions
from conformance.engine.preparation import FullResultsError, refuse_full_results

pytestmark = pytest.mark.contract("C43")

CELL = "hostcb/call/eager/cpu-1dev"
FULL = {
    "cells": [],
    "patterns": [],
    "smoke": False,
    "topologies": [],
    "implementations": ["hostcb", "jax"],
}


def folder_of(*arguments: str) -> Path:
    return RunOptions.of(commands.parsed(["run", *arguments])).results


def results_in(folder: Path, **options: Any) -> str:
    folder.mkdir(parents=True)
    file = folder / "conformance-cpu.json"
    file.write_text(json.dumps({"run": {"options": FULL | options}}))
    return file.read_text()


@pytest.mark.parametrize(
    "chosen", [("--cell", CELL), ("-k", "id_tap"), ("--cell", "@plan.txt"), ("--smoke",), ("--", "--lf")]
)
def test_chosen_cells_have_a_folder_of_their_own(chosen: tuple[str, ...]) -> None:
    assert folder_of(*chosen) == folder_of("--resume", *chosen) == SELECTION
    assert folder_of("--results", "results", *chosen) == Path("results")
    for whole in ((), ("--implementation", "jax"), ("--resume",), ("--", "-x")):
        assert folder_of(*whole) == RESULTS


def test_a_full_run_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = results_in(tmp_path / "full")
    assert commands.main(["run", "--cell", CELL, "--results", str(tmp_path / "full")]) == 2
    assert f"ERROR: {tmp_path / 'full'} has the results of a full run" in capsys.readouterr().err
    assert (tmp_path / "full" / "conformance-cpu.json").read_text() == before


def test_results_of_chosen_cells_are_replaced(tmp_path: Path) -> None:
    some = RunOptions(results=tmp_path / "chosen", depth="run", cells=(CELL,))
    for number, options in enumerate(({"cells": [CELL]}, {"patterns": ["call"]}, {"smoke": True})):
        folder = tmp_path / f"chosen-{number}"
        results_in(folder, **options)
        refuse_full_results(replace(some, results=folder))
    results_in(tmp_path / "full")
    refuse_full_results(RunOptions(results=tmp_path / "full"))
    refuse_full_results(replace(some, results=tmp_path / "full", platform="tpu"))
    with pytest.raises(FullResultsError, match="name another folder"):
        refuse_full_results(replace(some, results=tmp_path / "full"))
