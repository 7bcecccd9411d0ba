"""Results as a run writes them, and what a page or a Markdown text consists of. No cell runs for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from suite_runs import report_in

from conformance.expectations.entries import Expectations, read_entries
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.reports.provenance import plan_digest
from conformance.reports.results import SCHEMA_VERSION


def event(sequence: int, device: int | None, **fields: Any) -> dict[str, Any]:
    start = 10_000_000_000_000 + sequence * 7_000
    times = {"thread": 140_172_696_722_304, "begin": start, "end": start + 3_000}
    own = {"sequence": sequence, "site": "first", "value": [1.0], "transforms": "()", "device": device}
    return own | times | fields


def cell(cell_id: str, **fields: Any) -> dict[str, Any]:
    passed = {"id": cell_id, "promises": ["H1"], "verdict": "pass", "stage": None, "anomaly": "", "witness": ""}
    passed |= {"seconds": 0.25, "signal": None, "history": [], "evidence": [], "status": "as_expected"}
    passed |= {"expected": "pass", "known": None, "attempts": 1}
    return passed | {"reproduce": f"python -m conformance run --cell {cell_id}"} | fields


def failed(cell_id: str, anomaly: str, witness: str, status: str = "unexpected", **fields: Any) -> dict[str, Any]:
    own = {"verdict": "fail", "stage": "callback", "anomaly": anomaly, "witness": f"{anomaly}: {witness}"}
    return cell(cell_id, status=status, **own | fields)


PASSED = cell("hostcb/id_tap/vmap.scan/cpu-8dev")
LOST = failed("hostcb/call/scan/cpu-8dev", "lost", "cpu:3 never ran #6", attempts=2, seconds=1.5)
LOST["history"] = [event(0, 3), event(1, 0, value=[float("nan"), float("inf")])]
WHY = {"reason": "Dropped under grad.", "link": "https://example.org/issues/1", "intermittent": False}
KNOWN = failed("jax/io_callback/grad.scan/cpu-1dev", "order", "cpu:0 ran #2 before #1", "known_failure", known=WHY)
KNOWN["expected"] = "fail"
CASE = cell("jax/io_callback/case.raises.jit/cpu-8dev", status="unexpected_pass", expected="hang")


def results(*cells: dict[str, Any], platform: str = "cpu", **fields: Any) -> dict[str, Any]:
    info = {"jax": "0.12.0.1", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    own = {"schema": SCHEMA_VERSION, "platform": platform, "depth": "run", "run_info": {"cpu-8dev": info}}
    own |= {"seconds": 12.0, "process_starts": 1, "exit_code": 1, "cells": list(cells)}
    own |= {name: [] for name in ("problems", "gaps", "claims", "stale_expectations")}
    return own | {"ineligible": [{"id": "hostcb/id_tap/pmap.pmap/cpu-8dev", "reason": "JAX refuses"}]} | fields


def write(folder: Path, *cells: dict[str, Any], platform: str = "cpu", **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = results(*cells, platform=platform, **fields)
    (folder / f"conformance-{str(platform).replace('/', '_')}.json").write_text(json.dumps(data))
    return folder


# A whole run, of which a bundle can be made.

CORE, ORDERED = "hostcb/pure_callback/jit/cpu-1dev", "hostcb/id_tap/scan/cpu-1dev"
BAD_CASE, OF_JAX = "hostcb/buffer_callback/case.keeps_its_view.jit/cpu-8dev", "jax/pure_callback/jit/cpu-1dev"
CELLS = (
    *(CORE, ORDERED, "hostcb/pure_callback/pjit/cpu-8dev", "hostcb/buffer_callback/jit/cpu-1dev"),
    *(BAD_CASE, "hostcb/id_tap/pmap/cpu-2x4", OF_JAX),
)
"""With each of the profiles."""

ENTRY = """
[[expect]]
cells = "{}"
verdict = "fail"
stage = "callback"
reason = "It is planted."
link = "https://example.org/1"
since = "2026-01-01"
"""


def failing(stage: Stage = Stage.CALLBACK, verdict: Verdict = Verdict.FAIL) -> Outcome:
    return Outcome(verdict, stage, "lost: cpu:0 never ran #2", anomaly="lost")


def write_run(
    folder: Path,
    cells: Iterable[str] = CELLS,
    outcomes: Mapping[str, Outcome] = {},
    known: str | None = None,
    lacking: Mapping[str, str] = {},
    **fields: Any,
) -> Path:
    """Results in which all cells pass, but for those that have another outcome, and the journal."""
    found = {name: outcomes.get(name, Outcome(Verdict.PASS)) for name in cells}
    planned = [*found, *lacking]
    expectations = Expectations(read_entries(known or "", "known"))
    judged = [_judged(name, outcome, expectations) for name, outcome in found.items()]
    bad = any(one["status"] not in ("as_expected", "known_failure") for one in judged)
    run = {
        "suite": {"version": "0.1.0", "commit": "0123abcd", "changed": False},
        **{"begin": "2026-11-23T06:00:00+00:00", "end": "2026-11-23T06:05:00+00:00"},
        "command": "python -m conformance run",
        "options": {"platform": "cpu", "seed": 0, "devices": [1, 8], "implementations": ["hostcb", "jax"]},
        "plan": {"digest": plan_digest(planned), "count": len(planned), "unselected": [], "lacking": {**lacking}},
        "expectations": None if known is None else {"name": "cpu.toml", "text": known},
        **{"python": "3.12.1", "plugin_modules": [], "plugins": {"acme-jax-plugin": "2.3.1"}},
        "packages": {"hostcb": "0.1.0", "jax": "0.12.0.1", "jaxlib": "0.12.0.1"},
        "host": {"system": "Linux", "cpu": "a CPU", "cores": 2, "memory_bytes": 1},
    }
    info = {"jax": "0.12.0.1", "device_kind": "cpu", "device_count": 1, "process_count": 1}
    own = {"run_info": {"cpu-1dev": info}, "run": run, "ineligible": []}
    own["exit_code"] = 1 if bad or fields.get("problems") else 0
    write(folder, *judged, **own | fields)
    ran = [(name, outcome) for name, outcome in found.items() if outcome.verdict is not Verdict.MISSING]
    lines = [json.dumps({"event": "end", "cell": name, "outcome": outcome.as_json()}) for name, outcome in ran]
    (folder / "journal-cpu.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _judged(name: str, outcome: Outcome, expectations: Expectations) -> dict[str, Any]:
    entry = expectations.of(name)
    own = {"verdict": outcome.label, "status": expectations.status(name, outcome).value}
    own |= {"expected": entry.verdict if entry else "pass"}
    known = {"reason": entry.reason, "link": entry.link, "intermittent": False} if entry else None
    return cell(name, **outcome.as_json() | own, known=known)


def change(folder: Path, **fields: Any) -> Path:
    """The results with other fields."""
    (folder / "conformance-cpu.json").write_text(json.dumps(report_in(folder) | fields))
    return folder


class Page:
    """The parts of a page that the words of others may not change, and what its script reads."""

    def __init__(self, text: str) -> None:
        self.tags = re.findall(r"<[^>]*>", text)
        (self.style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        (self.title,) = re.findall(r"<title>(.*?)</title>", text)
        data, self.script = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
        self.data: Any = json.loads(data)
        (self.policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
