"""Results folders as a run writes them, for tests of bundles. No cell runs for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import results_fakes

from conformance.expectations.entries import Expectations, read_entries
from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.reports.provenance import plan_digest

CORE = "hostcb/pure_callback/jit/cpu-1dev"
ORDERED = "hostcb/id_tap/scan/cpu-1dev"
SHARDED = "hostcb/pure_callback/pjit/cpu-8dev"
ZERO_COPY = "hostcb/buffer_callback/jit/cpu-1dev"
CASE = "hostcb/buffer_callback/case.keeps_its_view.jit/cpu-8dev"
PROCESSES = "hostcb/id_tap/pmap/cpu-2x4"
OF_JAX = "jax/pure_callback/jit/cpu-1dev"

CELLS = (CORE, ORDERED, SHARDED, ZERO_COPY, CASE, PROCESSES, OF_JAX)

KNOWN = """
[[expect]]
cells = "{cells}"
verdict = "fail"
stage = "callback"
reason = "It is planted."
link = "https://example.org/1"
since = "2026-01-01"
"""


def failing(stage: Stage = Stage.CALLBACK, verdict: Verdict = Verdict.FAIL) -> Outcome:
    return Outcome(verdict, stage, "lost: cpu:0 never ran #2", anomaly="lost")


def write(
    folder: Path,
    cells: Iterable[str] = CELLS,
    outcomes: Mapping[str, Outcome] | None = None,
    known: str | None = None,
    lacking: Mapping[str, str] | None = None,
    **fields: Any,
) -> Path:
    """Results in which all cells pass, but for those that have another outcome."""
    folder.mkdir(exist_ok=True)
    found = {cell: (outcomes or {}).get(cell, Outcome(Verdict.PASS)) for cell in cells}
    lacking = dict(lacking or {})
    planned = [*found, *lacking]
    plan = {"digest": plan_digest(planned), "count": len(planned), "unselected": [], "lacking": lacking}
    judged = [_cell(cell, outcome, known) for cell, outcome in found.items()]
    unexpected = any(one["status"] not in ("as_expected", "known_failure") for one in judged)
    run = {
        "suite": {"version": "0.1.0", "commit": "0123abcd", "changed": False},
        **{"begin": "2026-11-23T06:00:00+00:00", "end": "2026-11-23T06:05:00+00:00"},
        "command": "python -m conformance run",
        "options": {"platform": "cpu", "seed": 0, "devices": [1, 8], "implementations": ["hostcb", "jax"]},
        "plan": plan,
        "expectations": None if known is None else {"name": "cpu.toml", "text": known},
        **{"python": "3.12.1", "plugin_modules": [], "plugins": {"acme-jax-plugin": "2.3.1"}},
        "packages": {"hostcb": "0.1.0", "jax": "0.12.0.1", "jaxlib": "0.12.0.1"},
        "host": {"system": "Linux", "cpu": "a CPU", "cores": 2, "memory_bytes": 1},
    }
    info = {"jax": "0.12.0.1", "device_kind": "cpu", "device_count": 1, "process_count": 1}
    own = {"run_info": {"cpu-1dev": info}, "run": run, "ineligible": []}
    own["exit_code"] = 1 if unexpected or fields.get("problems") else 0
    results_fakes.write(folder, *judged, **own | fields)
    lines = [
        json.dumps({"event": "end", "cell": cell, "outcome": outcome.as_json()})
        for cell, outcome in found.items()
        if outcome.verdict is not Verdict.MISSING
    ]
    (folder / "journal-cpu.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _cell(cell_id: str, outcome: Outcome, known: str | None) -> dict[str, Any]:
    expectations = Expectations(read_entries(known or "", "known"))
    entry = expectations.of(cell_id)
    own = {
        "verdict": outcome.label,
        "status": expectations.status(cell_id, outcome).value,
        "expected": entry.verdict if entry else "pass",
        "known": {"reason": entry.reason, "link": entry.link, "intermittent": False} if entry else None,
    }
    return results_fakes.cell(cell_id, **outcome.as_json() | own)


def changed(folder: Path, change: Any) -> Path:
    """The results after `change` was called with them."""
    file = folder / "conformance-cpu.json"
    results = json.loads(file.read_text())
    change(results)
    file.write_text(json.dumps(results))
    return folder
