"""The tables of support on the pages of callbacks: those of the stored extract, complete, and counted right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import support_tables

from conformance.model.transforms import TRANSFORMS
from conformance.oracle.verdicts import ExpectationStatus
from conformance.reports.results import CellRecord, Known
from conformance.spec.external_callbacks import ALL_CALLBACKS, OWN_FUNCTIONS

ENVIRONMENT = {"date": "2026-11-24", "jax": "0.12", "jaxlib": "0.12", "numpy": "2.5", "python": "3.12"}
KNOWN = Known("fail", "JAX refuses\n  this.", "docs/jax-bugs/one.md", intermittent=False)


def cell(name: str, **changes: object) -> CellRecord:
    fields = {"status": ExpectationStatus.AS_EXPECTED, "verdict": "pass", "known": None, "refused": False} | changes
    return CellRecord(
        id=name,
        promises=(),
        stage=None,
        anomaly="",
        witness="",
        seconds=0.1,
        history=(),
        evidence=(),
        expected="pass",
        attempts=1,
        reproduce="",
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("page", support_tables.PAGES)
def test_the_tables_of_a_page_are_those_of_the_extract(page: str) -> None:
    text = (support_tables.FOLDER / f"{page}.md").read_text(encoding="utf-8")
    made = support_tables.with_tables(text, support_tables.tables(page, support_tables.stored()))
    assert made == text, f"run `{support_tables.COMMAND}`"
    assert "✓" in made


def test_every_function_has_a_page() -> None:
    assert {name.replace(".", "_") for name in OWN_FUNCTIONS if name} == set(support_tables.PAGES)
    index = (support_tables.FOLDER / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\w+$", index, re.MULTILINE)) == set(support_tables.PAGES)


def test_every_callback_of_the_suite_is_in_one_table() -> None:
    counted = [name for sections in support_tables.PAGES.values() for each in sections for name in each.hostcb]
    assert sorted(counted) == sorted(callback.name for callback in ALL_CALLBACKS if not callback.parts)
    of_jax = {callback.name for callback in ALL_CALLBACKS}
    assert of_jax.issuperset(
        name for sections in support_tables.PAGES.values() for each in sections for name in each.jax
    )


def test_every_transform_has_a_row_or_a_column() -> None:
    assert set(TRANSFORMS) == {*support_tables.TRANSFORMS, *support_tables.LAYOUTS}


def test_the_extract_counts_what_came_of_the_cells() -> None:
    extracted = support_tables.extract(
        [
            cell("hostcb/io_callback/vmap.scan+int8-vector-one/cpu-1dev+x64"),
            cell("hostcb/io_callback/vmap.jit/cpu-8dev", refused=True),
            cell("hostcb/io_callback/shard_map.vmap/cpu-8dev"),
            cell("hostcb/io_callback/pmap/cpu-1dev"),
            cell("hostcb/io_callback/pjit/cpu-2x2"),
            cell("hostcb/io_callback/case.raises.jit/cpu-8dev"),
            cell("hostcb/io_callback/table.jit/cpu-8dev"),
            cell("jax/io_callback/vmap/cpu-8dev", status=ExpectationStatus.KNOWN_FAILURE, verdict="fail", known=KNOWN),
            cell("jax/io_callback/vmap/cpu-1dev", status=ExpectationStatus.UNEXPECTED, verdict="fail"),
        ],
        ENVIRONMENT,
    )
    assert extracted["run"]["cells"] == 7
    assert extracted["counts"] == {
        "hostcb/io_callback": {
            "`vmap`": {"one device": {"passed": 1, "refused": 1}, "`shard_map`": {"passed": 1}},
            "`scan`": {"one device": {"passed": 1}},
            "no other transform": {"one device": {"passed": 1}, "`jit` over a mesh": {"passed": 1}},
            "in several processes": {"`jit` over a mesh": {"passed": 1}},
        },
        "jax/io_callback": {"`vmap`": {"one device": {"known failure": 1, "unexpected": 1}}},
    }
    shown = support_tables.tables("io_callback", extracted)
    assert "| `vmap` | 1 ✓<br>1 ⊘ | 1 ✗<br>1 ! |  | 1 ✓ |" in shown
    assert "✗ JAX: JAX refuses this. [Report](../jax-bugs/one.md)" in shown
    assert "! neither as the contract has it" in shown


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="support: begin"):
        support_tables.with_tables("# Page\n", "table\n")


def test_a_folder_without_a_run_on_cpu_is_refused(tmp_path: Path) -> None:
    common = {"schema": 1, "platform": "cuda", "depth": "run", "seconds": 1, "process_starts": 0, "run_info": {}}
    empty = dict.fromkeys(("problems", "claims", "stale_expectations", "cells", "ineligible"), ())
    (tmp_path / "conformance-cuda.json").write_text(json.dumps(common | empty))
    with pytest.raises(SystemExit, match="has no results of a run on CPU"):
        support_tables.of_results(tmp_path)
