"""The options that choose what a run does of a selection: a shard, what a killed run has left, or what is missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..oracle.repetition import Repetition
from ..oracle.verdicts import Outcome, Verdict
from ..planning.cells import Cell, Ineligible, Plan, parse_cell
from ..reports.provenance import RequiredCells
from ..reports.results import UnreadableResultsError, load_results, name_of
from ..spec.depths import Depth
from ..spec.errors import CommandError
from ..spec.sources import versions
from .conclusions import Conclusion
from .run_journal import Past, ResumeError, difference
from .shards import Shard, shard_of
from .tasks import Task

AGAIN = (Verdict.MISSING.value, Verdict.HARNESS_ERROR.value)
"""The verdicts of cells that `--retry-missing` runs: they show nothing."""


class PartError(CommandError):
    """Options that choose a part of a selection, and cannot be followed."""


def check(options: Any, patterns: Sequence[str]) -> None:
    """Refuse options that have no meaning together."""
    if options.balance and not options.shard:
        raise PartError("--balance is for --shard K/N: it says how to split the cells")
    if not options.retry_missing:
        return
    others = (
        (options.resume, "--resume"),
        (options.shard, "--shard"),
        (options.cell_ids, "--cell"),
        (options.plan_file, "--plan"),
        (patterns, "-k"),
        (options.implementations, "--implementation"),
        (options.devices, "--devices"),
        (options.topologies, "--topology"),
        (options.seed, "--seed"),
        (options.full, "--full"),
        (options.smoke, "--smoke"),
    )
    for given, name in others:
        if given:
            raise PartError(f"--retry-missing runs what is missing in the results, so {name} has no meaning with it")


def cells_of_shard(
    cells: Sequence[Cell], tasks: Sequence[Task], shard: Shard, balance: Path | None
) -> tuple[Cell, ...]:
    """The cells of a shard, in the order of the plan."""
    where = tasks[0].topology if tasks else None
    seconds = seconds_in(balance, name_of(where.platform, where.depth.value)) if balance and where else {}
    chosen = shard_of(tasks, shard, seconds)
    return tuple(cell for cell in cells if cell.id in chosen)


def seconds_in(folder: Path, name: str) -> dict[str, float]:
    """The seconds of each cell in the results of the run with this name in a folder."""
    runs = [run for run in load_results(folder) if run.name == name]
    if not runs:
        raise PartError(f"--balance: {folder} has no results of {name}")
    return {cell.id: cell.seconds for cell in runs[0].cells}


def balance_digest(folder: Path, name: str) -> str:
    """A name for the seconds in a folder."""
    return hashlib.sha256(json.dumps(sorted(seconds_in(folder, name).items())).encode()).hexdigest()[:16]


class LastResults:
    """The results in a folder, to which a run adds what is missing."""

    def __init__(self, results: Path, platform: str, depth: Depth | None = None) -> None:
        """The results on a platform, by default of the deepest depth that is there."""
        depths = [depth] if depth else [*reversed(Depth)]
        files = [results / f"conformance-{name_of(platform, one.value)}.json" for one in depths]
        self._file = next((file for file in files if file.exists()), files[0])
        if not self._file.exists():
            raise PartError(
                f"there is nothing to retry: {results} has no {self._file.name}; leave --retry-missing out,"
                " or name the --platform"
            )
        # With the sentences of the reader about files that are none.
        load_results(results)
        self._data: dict[str, Any] = json.loads(self._file.read_text())
        self._again = [cell for cell in self._data["cells"] if cell["verdict"] in AGAIN]
        if not self._again:
            raise PartError(f"there is nothing to retry: no cell is missing in {self._file}")

    @property
    def depth(self) -> Depth:
        return Depth(self._data.get("depth", Depth.RUN.value))

    @property
    def selection(self) -> Plan:
        """All cells of the results, and what they left out."""
        cells = tuple(parse_cell(cell["id"], any_release=True) for cell in self._data["cells"])
        ineligible = (Ineligible(one["id"], one["reason"]) for one in self._data["ineligible"])
        return Plan(cells, tuple(ineligible))

    @property
    def required(self) -> RequiredCells | None:
        """The plan from which the cells were selected, if they were not named one by one."""
        plan = self._data.get("run", {}).get("plan")
        if not plan:
            return None
        ids = [cell["id"] for cell in self._data["cells"]]
        return RequiredCells([*ids, *plan["unselected"], *plan["lacking"]], plan["lacking"])

    @property
    def past(self) -> Past:
        """What the results say of the cells that do not run again."""
        try:
            again = {cell["id"] for cell in self._again}
            kept = {cell["id"]: _conclusion(cell) for cell in self._data["cells"] if cell["id"] not in again}
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableResultsError(f"{self._file} is too old to be added to: {error!r}") from error
        stale = {f"the expectation {pattern!r} matches no planned cell" for pattern in self.stale}
        # What only says that cells are missing is over.
        over = {*self._data.get("gaps", ()), *stale}
        return Past(
            kept,
            run_info=self._data["run_info"],
            problems=tuple(problem for problem in self._data["problems"] if problem not in over),
            process_starts=self._data.get("process_starts") or 0,
            seconds=self._data["seconds"],
        )

    @property
    def stale(self) -> Sequence[str]:
        return tuple(self._data.get("stale_expectations", ()))

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields that say which part of a selection the results have."""
        return {key: self._data[key] for key in ("shard", "selection", "merged") if key in self._data}

    def check(self, options: Mapping[str, Any], implementations: Sequence[str]) -> None:
        """Refuse to add results of other versions, or of cells that run otherwise."""
        for key, now in (("versions", versions(implementations)), ("options", options)):
            before = self._data.get(key, {})
            compared = {name: value for name, value in now.items() if name != "deadline"}
            before = {name: value for name, value in before.items() if name != "deadline"}
            if before != compared:
                raise ResumeError(
                    f"the results in {self._file} are of other {key}: {difference(before, compared)}. Retry with the"
                    " same, or run all cells again without --retry-missing"
                )


def _conclusion(cell: Mapping[str, Any]) -> Conclusion:
    outcome = Outcome.from_json({**cell, "verdict": cell["verdict"].partition("(")[0]})
    repeated = Repetition.from_json(cell["repeated"]) if cell.get("repeated") else None
    return Conclusion(outcome, cell["attempts"], tuple(cell.get("company", ())), repeated)
