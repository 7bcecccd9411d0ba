"""The command `expect`: prints what a run found as entries of a file of known failures. It needs no JAX."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..expectations.entries import toml_of
from ..oracle.verdicts import Verdict, in_words
from ..reports.results import CellRecord, RunRecord, full_run_in, load_results
from ..reports.visible import clipped, in_a_line
from ..spec.versions import from_version
from .helping import add_command, add_results

UNEXPECTABLE = {Verdict.FLAKE.value, Verdict.MISSING.value, Verdict.HARNESS_ERROR.value}
"""Verdicts that do not predict the next run of the cell."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "expect",
        "Print a run's new failures as entries to paste into the platform's file of known failures, and say which\n"
        "cells of entries there do something else now.",
        ["results"],
        {0: "printed", 2: "no results"},
    )
    add_results(parser.add_argument)


def main(options: argparse.Namespace) -> int:
    nothing = True
    for run in load_results(options.results):
        lines = [*entries(run, datetime.date.today().isoformat(), whole=full_run_in(options.results, run.name))]
        # A folder may have several runs, and each platform has its own file of known failures.
        for line in [_comment(run.name), *lines] if lines else []:
            print(line)
            nothing = False
    if nothing:
        print(_comment("nothing new"))
    return 0


def entries(run: RunRecord, since: str, *, whole: bool) -> Iterator[str]:
    """TOML: an entry for each callback and way to fail; as comments, what a person has to change or to know.

    An entry is limited to the version of the run and newer ones: nobody has seen the failure on older ones.
    """
    for pattern in run.stale_expectations:
        yield _comment(f"remove {pattern!r} from its entry: it matches no cell")
    wrong = [cell for cell in run.cells if not cell.status.acceptable]
    if missing := sum(cell.verdict == Verdict.MISSING.value for cell in wrong):
        yield _comment(f"{missing} cell{'s' * (missing != 1)} did not run")
    for cell in wrong:
        if cell.verdict == Verdict.MISSING.value:
            continue
        if _verdict(cell) in UNEXPECTABLE:
            yield _comment(f"no entry for a {cell.verdict}, which does not tell what the next run will show: {cell.id}")
        elif cell.expected != Verdict.PASS.value:
            entry, now = cell.entry or "its entry", in_words(cell.verdict, cell.stage, "")
            yield _comment(f"take {cell.id} out of {entry}, which expects {cell.expected}: now it is {now}")
    version = next((str(info["jax"]) for info in run.environment.values() if "jax" in info), "")
    known = [cell.id for cell in run.cells] if whole else []
    for cells in _groups(cell for cell in wrong if _verdict(cell) not in UNEXPECTABLE and not cell.passed):
        first = cells[0]
        fields: dict[str, Any] = {"cells": _globs([cell.id for cell in cells], known), "verdict": _verdict(first)}
        fields |= {"stage": first.stage} if first.stage else {}
        fields |= {"jax": from_version(version)} if version else {}
        # A run refuses an entry without them: only a person knows the reason of a failure that the CPU does not have.
        fields |= {"reason": " ".join(first.on_cpu.reason.split()) if first.on_cpu else ""}
        fields |= {"link": first.on_cpu.link if first.on_cpu else "", "since": since}
        fields |= {"intermittent": True} if first.on_cpu and first.on_cpu.intermittent else {}
        yield from ("", _comment(first.witness.partition("\n")[0]), *toml_of(fields).splitlines())


def _verdict(cell: CellRecord) -> str:
    """Of a flake that the CPU has as well, by chance, that of the CPU's entry."""
    return cell.on_cpu.verdict if cell.on_cpu else cell.verdict


def _groups(cells: Iterable[CellRecord]) -> list[list[CellRecord]]:
    """One group for each cause that the platform names, or for each callback and way to fail."""
    groups: dict[tuple[object, ...], list[CellRecord]] = {}
    for cell in cells:
        whose = ("", cell.cause) if cell.cause else (cell.implementation, cell.callback)
        groups.setdefault((*whose, _verdict(cell), cell.stage, cell.on_cpu), []).append(cell)
    return [*groups.values()]


def _globs(cell_ids: Sequence[str], known: Sequence[str]) -> list[str]:
    """Globs that match these of all known cells: one glob for a program that fails on all its topologies."""
    globs: dict[str, None] = {}
    for cell_id in cell_ids:
        program, _, topology = cell_id.rpartition("/")
        everywhere = f"{program}/{topology.partition('-')[0]}-*"
        matched = fnmatch.filter(known, everywhere)
        globs[everywhere if len(matched) > 1 and {*matched} <= {*cell_ids} else cell_id] = None
    return [*globs]


def _comment(text: str) -> str:
    return f"# {clipped(in_a_line(text))}"
