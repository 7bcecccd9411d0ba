"""The command `expect`: brings an expectation file into line with what a run found."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.preparation import IMPLEMENTATIONS, known_failures_of
from ..expectations.editing import ExpectationFile
from ..expectations.entries import Expectation, Expectations, read_entries
from ..oracle.verdicts import Stage, Verdict
from ..planning import selection
from ..planning.cells import parse_cell
from ..planning.depths import at_depth, multi_host_cells
from ..reports.results import CellRecord, RunRecord, UnreadableResultsError, load_results
from ..reports.visible import in_a_line
from ..spec.depths import Depth
from ..spec.versions import SpecifierError, down_to, from_version, version_matches
from .helping import add_command

UNEXPECTABLE = {Verdict.FLAKE.value, Verdict.MISSING.value, Verdict.HARNESS_ERROR.value}
"""Verdicts that do not predict the next run of the cell."""


@dataclass
class Update:
    """The new text, and a description of the changes."""

    text: str
    done: list[str] = field(default_factory=list)


def update(text: str, name: str, run: RunRecord, planned: Sequence[str], since: str, jax: str | None = None) -> Update:
    """Make all results of the run expected; `planned` are all cells that globs may match.

    New entries hold for the versions `jax`, by default from the version of the run on: nobody has seen the failure on
    older ones.
    """
    file = ExpectationFile(text, name)
    found = Update(text)
    version = next((str(info["jax"]) for info in run.environment.values() if "jax" in info), "")
    known = {*planned, *(cell.id for cell in run.cells)}
    wrong = {cell.id: cell for cell in run.cells if not cell.standing.acceptable and cell.verdict not in UNEXPECTABLE}
    for number, entry in enumerate(file.entries):
        if version_matches(version, entry.jax):
            _narrow(file, number, entry, wrong, known, run, found)
    jax = from_version(version) if jax is None else jax
    failing = [cell for cell in wrong.values() if not cell.passed]
    for number, entry in enumerate(file.entries):
        if met := _widened(entry, failing, run, version):
            file.widen(number, down_to(entry.jax, version))
            found.done.append(f"widened: entry {number + 1}: {entry.jax}: seen on {version}, too")
            failing = [cell for cell in failing if cell not in met]
    for cells in _groups(failing):
        globs = _globs([cell.id for cell in cells], known)
        first = cells[0]
        file.add(globs, first.verdict, first.stage, since, jax, first.witness.partition("\n")[0])
        found.done.append(f"added: {first.verdict}{f' at {first.stage}' if first.stage else ''}: {', '.join(globs)}")
    left = [cell for cell in run.cells if not cell.standing.acceptable and cell.verdict in UNEXPECTABLE]
    found.done += [f"NOT added, since a {cell.verdict} is nothing to expect: {cell.id}" for cell in left]
    found.text = file.text
    _check(found.text, name, version, wrong.values())
    return found


def _narrow(
    file: ExpectationFile,
    number: int,
    entry: Expectation,
    wrong: dict[str, CellRecord],
    known: set[str],
    run: RunRecord,
    found: Update,
) -> None:
    kept: list[str] = []
    for glob in entry.cells:
        about = fnmatch.filter(sorted(known), glob)
        right = [cell_id for cell_id in about if cell_id not in wrong]
        if glob in run.stale_expectations or (about and not right):
            why = "no such cell" if glob in run.stale_expectations else "they do something else now"
            found.done.append(f"removed: entry {number + 1}: {glob}: {why}")
        elif len(right) < len(about):
            kept += _globs(right, known)
            found.done.append(f"narrowed: entry {number + 1}: {glob}: to {len(right)} of {len(about)} cells")
        else:
            kept.append(glob)
    if tuple(kept) != entry.cells:
        file.narrow(number, kept)


def _widened(entry: Expectation, failing: Sequence[CellRecord], run: RunRecord, version: str) -> Sequence[CellRecord]:
    """The new failures that an entry of newer versions has right; none if it has any cell of the run wrong."""
    if version_matches(version, entry.jax) or not version_matches(version, down_to(entry.jax, version)):
        return ()
    about = [cell for cell in run.cells if entry.matches(cell.id)]
    right = all(cell in failing and _met(entry, cell) for cell in about)
    return about if right else ()


def _groups(cells: Sequence[CellRecord]) -> list[list[CellRecord]]:
    """Group the cells into entries: one for each cause of the platform's, or for each callback and way to fail."""
    groups: dict[tuple[str, str, str, str | None], list[CellRecord]] = {}
    for cell in cells:
        whose = ("", cell.cause) if cell.cause else (cell.implementation, cell.callback)
        groups.setdefault((*whose, cell.verdict, cell.stage), []).append(cell)
    return list(groups.values())


def _globs(cell_ids: Sequence[str], known: set[str]) -> list[str]:
    """Globs that match exactly these cells: one glob for a program that fails on all its topologies."""
    globs: dict[str, None] = {}
    for cell_id in cell_ids:
        program, _, topology = cell_id.rpartition("/")
        everywhere = f"{program}/{topology.partition('-')[0]}-*"
        matched = fnmatch.filter(known, everywhere)
        globs[everywhere if len(matched) > 1 and set(matched) <= {*cell_ids} else cell_id] = None
    return list(globs)


def _check(text: str, name: str, version: str, cells: Any) -> None:
    """The written text must have the meaning of the results."""
    expectations = Expectations(read_entries(text, name)).applicable(version)
    for cell in cells:
        entry = expectations.of(cell.id)
        right = entry is None if cell.passed else entry is not None and _met(entry, cell)
        if not right:
            raise AssertionError(f"the updated file does not say of {cell.id} that it is {cell.verdict}")


def _met(entry: Expectation, cell: CellRecord) -> bool:
    return entry.verdict == cell.verdict and entry.stage in (None, Stage(cell.stage) if cell.stage else None)


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "expect",
        "bring the file of known failures into line with a run",
        "Add a run's new failures to the file of known failures, and narrow or remove entries that no longer fail.",
        ["--from results", "--from results --jax '>=0.10.2,<0.13'"],
        {
            0: "the file agrees with the run; each change is printed",
            2: "bad input, or no results: the file is as it was",
        },
    )
    parser.add_argument(
        "--from", dest="results", type=Path, required=True, metavar="DIR", help="what `run --results` was given"
    )
    parser.add_argument(
        "--file", type=Path, help="the file of known failures; by default ci/expectations/PLATFORM.toml"
    )
    parser.add_argument(
        "--jax",
        type=_versions,
        metavar="VERSIONS",
        help="what new entries are limited to, like '>=0.10.2,<0.12'; by default '>=' and the version of the run",
    )


def _versions(text: str) -> str:
    try:
        version_matches("0", text)
    except SpecifierError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def main(options: argparse.Namespace) -> int:
    for run in load_results(options.results):
        if run.compiled:
            raise UnreadableResultsError(
                f"{options.results} has results of `run --compiled`, whose programs may have been compiled earlier: "
                "a known failure is of programs that this run has compiled, so run the cells again without it"
            )
        path = options.file or known_failures_of(run.platform)
        text = path.read_text() if path.exists() else ""
        today = datetime.date.today().isoformat()
        found = update(text, str(path), run, _planned(run), today, options.jax)
        if found.text != text:
            path.write_text(found.text)
        changes = f"{len(found.done)} change{'s' * (len(found.done) > 1)}"
        print(f"{path}: {changes}" if found.done else f"{path}: all is as expected, nothing changed")
        for line in found.done:
            print(f"  {in_a_line(line)}")
        if any(line.startswith("added") for line in found.done):
            print("  Say in each new entry's 'reason' and 'link' why; until then a run refuses the file.")
    return 0


def _planned(run: RunRecord) -> list[str]:
    """All cells on the run's platform, selected or not: an entry may also name cells that were not selected."""
    found = {parse_cell(cell.id, any_release=True).topology.device_count for cell in run.cells}
    device_counts = selection.CPU_DEVICE_COUNTS if run.platform == "cpu" else tuple(sorted(found))
    implementations = dict.fromkeys((*IMPLEMENTATIONS, *(cell.implementation for cell in run.cells)))
    depth = Depth(run.depth)
    plan = at_depth(selection.whole_plan_of([*implementations], run.platform, device_counts), depth)
    more = multi_host_cells(plan, run.platform) if depth is Depth.COMPILE else ()
    return [cell.id for cell in (*plan.cells, *more)]
