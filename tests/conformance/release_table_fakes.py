"""Releases, cells and outcomes for tests of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.oracle.verdicts import Outcome, Stage, Verdict
from conformance.releases.records import Record
from conformance.releases.release import Release
from conformance.releases.table import table_of
from conformance.reports.table import Table

RELEASES = tuple(Release(version, version) for version in ("0.5.0", "0.6.1", "0.6.2", "0.8.3"))
CELLS = ("jax/pure_callback/jit/cpu-1dev", "jax/pure_callback/scan/cpu-1dev", "jax/io_callback/scan/cpu-1dev")

PASS = Outcome(Verdict.PASS, seconds=1.0)
EVENT = {"sequence": 1, "site": "first", "value": [1.0], "transforms": "()", "device": 0, "thread": 7}
EVENT |= {"begin": 1_000, "end": 4_000}
LOST = Outcome(Verdict.FAIL, Stage.CALLBACK, "lost: <b>#1</b> | `x`", history=[EVENT], anomaly="lost")
CRASH = Outcome(Verdict.CRASH, Stage.DISPATCH, "the process ended", signal="SIGABRT")
LACKS = Outcome(Verdict.UNSUPPORTED, None, "JAX 0.5.0 has none", anomaly="not applicable")


def recorded(*rows: Sequence[Outcome | None]) -> list[Record]:
    """A row for each cell, an outcome for each release; None for a cell that did not run."""
    return [
        Record(release, cell, outcome)
        for cell, row in zip(CELLS, rows, strict=False)
        for release, outcome in zip(RELEASES, row, strict=True)
        if outcome
    ]


def table(*rows: Sequence[Outcome | None], **more: Any) -> Table:
    return table_of(recorded(*rows), RELEASES, CELLS[: len(rows)], **more)


ENTRY = """\
[[expect]]
cells = "{cells}"
verdict = "fail"
stage = "callback"
jax = "{jax}"
reason = "Planted."
link = "none"
since = "2026-11-23"
"""
