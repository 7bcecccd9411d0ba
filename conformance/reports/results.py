"""Reads the JSON of a run. Neither this module nor its imports import JAX."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..oracle.repetition import Repetition
from ..oracle.verdicts import ExpectationStatus, Verdict, in_words
from ..spec.depths import Depth
from ..spec.errors import CommandError
from ..spec.suite import Suite
from .capabilities import REFUSED, Claim, Observed, judged_claims, observed
from .table import several

SCHEMA_VERSION = 1
"""The version is raised when a field is removed or changes its meaning; a new field does not raise it."""


NOTHING_RAN = 2

AS_EXPECTED_AT = {Depth.RUN: 0, Depth.COMPILE: 3, Depth.LOWER: 4}
"""The exit code of a run that is as expected, and whose depth the machine has chosen."""


class UnreadableResultsError(CommandError):
    """A results directory from which no report can be made."""


@dataclass(frozen=True)
class Known:
    """The entry of the expectation file for a cell."""

    verdict: str
    reason: str
    link: str
    intermittent: bool


@dataclass(frozen=True)
class CellRecord:
    """The result of one cell."""

    id: str
    promises: tuple[str, ...]
    verdict: str
    """With the signal, as expectation files write it: `fail`, `crash(SIGABRT)`."""
    stage: str | None
    anomaly: str
    """The kind of the first anomaly."""
    witness: str
    seconds: float
    history: tuple[Mapping[str, Any], ...]
    evidence: tuple[tuple[int, int], ...]
    """The events that the witness numbers: sequence, and number in the witness."""
    status: ExpectationStatus
    expected: str
    known: Known | None
    on_cpu: Known | None
    """The known failure of JAX's CPU that an unexpected failure on another platform is."""
    attempts: int
    reproduce: str
    repetition: Repetition | None = None
    """What several runs of the cell have shown, if several were asked for."""
    shown: str = ""
    """Of a good cell that did not run: whether its program was `lowered`, `compiled` or `refused`."""
    refusal: str = ""
    """Of an unsupported program, the platform's words that other cells share."""
    refused: bool = False
    """Whether the program had to be refused, and was."""
    entry: str = ""
    """The file of known failures, and its entry, that does not expect what the cell does."""

    @property
    def is_refused(self) -> bool:
        """Whether the program was refused as it must be, at any depth."""
        return self.refused or self.shown == REFUSED

    @property
    def cause(self) -> str:
        """The cause of an unexpected refusal."""
        return "" if self.status.acceptable else self.refusal

    @property
    def implementation(self) -> str:
        return self.id.split("/")[0]

    @property
    def callback(self) -> str:
        return self.id.split("/")[1]

    @property
    def program(self) -> str:
        """The name of the program, without the data kind."""
        return self.id.split("/")[2].partition("+")[0]

    @property
    def transforms(self) -> tuple[str, ...]:
        """The transforms of the program, or `case` or `table` alone: those have none."""
        names = tuple(self.program.split("."))
        return names[:1] if names[0] in ("case", "table") else names

    @property
    def passed(self) -> bool:
        return self.verdict == Verdict.PASS.value

    @property
    def words(self) -> str:
        """What happened, without the words that differ from run to run."""
        return in_words(self.verdict, self.stage, self.anomaly)


def name_of(platform: str, depth: str) -> str:
    """The name of a run in its files: the platform, and the depth if nothing ran."""
    return platform if depth == "run" else f"{platform}@{depth}"


@dataclass(frozen=True)
class RunRecord:
    """One file: a run on one platform."""

    platform: str
    seconds: float
    problems: tuple[str, ...]
    environment: Mapping[str, Mapping[str, Any]]
    """The environment that the workers reported, by topology."""
    cells: tuple[CellRecord, ...]
    stale_expectations: tuple[str, ...]
    """Globs of the expectation file that match no planned cell."""
    process_starts: int
    left_out: Mapping[str, str]
    """The reasons of combinations that were not applicable, by id."""
    depth: str
    """How far the cells were taken: `lower`, `compile` or `run`."""
    claimed: tuple[str, ...]
    """The capabilities that the platform's vendor claims."""
    made: Mapping[str, str]
    """In words: `selected` of how many cells, by which `command`, `date`, `suite` and further `software`."""
    of_shard: bool = False
    """Whether these are the results of one shard, which may have no cell."""

    @property
    def name(self) -> str:
        return name_of(self.platform, self.depth)

    @cached_property
    def capabilities(self) -> tuple[Observed, ...]:
        return observed((cell.id, REFUSED if cell.is_refused else cell.verdict) for cell in self.cells)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the run says of each claim: its cells are asked, and not what the file says."""
        return judged_claims(self.claimed, self.capabilities) if self.claimed else ()

    @property
    def all_problems(self) -> tuple[str, ...]:
        """With the claims that failed."""
        return *self.problems, *(f"CLAIM FAILED: {claim.sentence}" for claim in self.claims if claim.failed)

    @property
    def unexpected(self) -> tuple[CellRecord, ...]:
        return tuple(cell for cell in self.cells if not cell.status.acceptable)

    @property
    def good(self) -> bool:
        """Whether the run passes: each cell is as expected, and there is one, unless other shards have them all."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0 if all cells are as expected, 1 if not or if the run had a problem, 2 if no cell was executed."""
        # If there are more shards than cells, nothing had to be executed.
        empty = self.of_shard and not self.cells
        if not empty and all(cell.verdict == Verdict.MISSING.value for cell in self.cells):
            return NOTHING_RAN
        return int(bool(self.unexpected or self.all_problems))

    @property
    def facts(self) -> dict[str, str]:
        """What the terminal, the Markdown and the page say first, in this order."""
        shown = Counter(cell.shown for cell in self.cells if cell.shown)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(shown.items())) or "none shown"
        depth = "" if self.depth == "run" else f" at depth {self.depth}: nothing ran, {counts}"
        passed = sum(cell.passed for cell in self.cells)
        known = sum(cell.status is ExpectationStatus.KNOWN_FAILURE for cell in self.cells)
        minutes, seconds = divmod(round(self.seconds), 60)
        return {
            "platform": f"{self.platform}{depth}",
            "software": ", ".join(filter(None, (self._software, self.made.get("software")))),
            "selected": self.made.get("selected", ""),
            "passed": f"{passed:,} of {len(self.cells):,} cells passed",
            "known": several(known, "known failure"),
            "unexpected": _in_words(self.unexpected),
            "problems": f"{several(found, 'problem')} of the run" if (found := len(self.all_problems)) else "",
            "time": f"{minutes} min {seconds} s" if minutes else f"{self.seconds:.0f} s",
        }

    @property
    def origin(self) -> dict[str, str]:
        """What the Markdown and the page say after the facts."""
        return {name: self.made[name] for name in ("suite", "date", "command") if name in self.made}

    @property
    def _software(self) -> str:
        """The versions that the workers reported; more than one of a package if the topologies had more."""
        names = {"jax": "JAX", "jaxlib": "jaxlib", "python": "Python"}
        found = {
            words: dict.fromkeys(str(info[name]) for info in self.environment.values() if info.get(name))
            for name, words in names.items()
        }
        return ", ".join(f"{words} {' and '.join(versions)}" for words, versions in found.items() if versions)


def _in_words(unexpected: Sequence[CellRecord]) -> str:
    never_run = sum(cell.verdict == Verdict.MISSING.value for cell in unexpected)
    on_cpu = sum(cell.on_cpu is not None for cell in unexpected)
    words = several(len(unexpected) - never_run, "unexpected result")
    words += f", {on_cpu} known on the CPU" if on_cpu else ""
    return words + (f"; {several(never_run, 'cell')} did not run" if never_run else "")


def known_failures(cells: Sequence[CellRecord]) -> dict[Known, list[CellRecord]]:
    """The cells with a known failure, grouped by their entry."""
    found: dict[Known, list[CellRecord]] = {}
    for cell in cells:
        if cell.known is not None and cell.status is ExpectationStatus.KNOWN_FAILURE:
            found.setdefault(cell.known, []).append(cell)
    return found


def load_results(folder: Path) -> tuple[RunRecord, ...]:
    """The runs in a results directory, one for each platform."""
    files = sorted(folder.glob("conformance-*.json"))
    if not folder.is_dir():
        raise UnreadableResultsError(f"there is no folder {folder}")
    if not files:
        # Such as those of chosen cells, which have a folder of their own.
        below = sorted({file.parent for file in folder.glob("*/conformance-*.json")})
        there = f"; {' and '.join(map(str, below))} holds one" * bool(below)
        raise UnreadableResultsError(
            f"{folder} holds no conformance-PLATFORM.json, as `run --results` writes it{there}"
        )
    return tuple(_run(file) for file in files)


def full_run_in(folder: Path, name: str) -> bool:
    """Whether a folder has the results of all cells of both implementations, in the file with this name."""
    try:
        options = json.loads((folder / f"conformance-{name}.json").read_text())["run"]["options"]
        chosen = [options[each] for each in ("cells", "patterns", "smoke", "topologies")]
        return not any(chosen) and len(options["implementations"]) > 1
    except UNREADABLE:
        return False


def _run(file: Path) -> RunRecord:
    try:
        data = json.loads(file.read_text())
        check_schema(str(file), data)
        return record_of(data)
    except UNREADABLE as error:
        raise UnreadableResultsError(f"{file} is no result of a run: {type(error).__name__}: {error}") from error


def record_of(data: Mapping[str, Any]) -> RunRecord:
    """The run that this JSON describes."""
    return RunRecord(
        _file_part(data["platform"]),
        _seconds(data["seconds"]),
        tuple(str(problem) for problem in data["problems"]),
        {topology: dict(info) for topology, info in data["run_info"].items()},
        tuple(_cell(cell) for cell in data["cells"]),
        tuple(str(glob) for glob in data["stale_expectations"]),
        int(data["process_starts"]),
        {str(cell["id"]): str(cell["reason"]) for cell in data["ineligible"]},
        Depth(data["depth"]).value,
        tuple(str(claim["name"]) for claim in data["claims"]),
        _made(data["run"], len(data["cells"])) if "run" in data else {},
        "shard" in data and bool(data["selection"]["count"]),
    )


def judged(data: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON, with what follows from its cells."""
    run = record_of(data)
    capabilities = [row.as_json() for row in run.capabilities if row.cells]
    claims = [claim.as_json() for claim in run.claims]
    return {**data, "exit_code": run.exit_code, "capabilities": capabilities, "claims": claims}


def _made(run: Mapping[str, Any], cells: int) -> dict[str, str]:
    """Of a run that says how it was made."""
    plan, packages, suite = run["plan"], run["packages"], run["suite"]
    named = f"{several(cells, 'cell')} named by --cell"
    own = {name: packages[name] for name in ("hostcb",) if name in packages} | run.get("plugins", {})
    return {
        "software": ", ".join(f"{name} {version}" for name, version in own.items()),
        "selected": f"{cells:,} of {plan['count']:,} planned cells" if plan else named,
        "suite": f"of hostcb {Suite(suite['version'], suite['commit'], suite['changed']).words}",
        "date": str(run["begin"]).replace("T", " ").replace("+00:00", " UTC"),
        "command": str(run["command"]),
    }


UNREADABLE = (OSError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
"""What the reading of a file may raise that no run has written: it may be of any shape, and nested without end."""


def _file_part(platform: Any) -> str:
    """The name of a platform, which `merge` and `expect` make the name of a file of."""
    if not isinstance(platform, str) or not platform or {*"/\\\0"} & {*platform} or platform.startswith("."):
        raise ValueError(f"{platform!r} is no name of a platform")
    return platform


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is no number of seconds")
    return seconds


def check_schema(name: str, data: Mapping[str, Any]) -> None:
    """Refuse results of a version that this reader does not know."""
    version = data["schema"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TypeError(f"the schema is {version!r}, not a number")
    if version > SCHEMA_VERSION:
        raise UnreadableResultsError(
            f"{name} has schema {version}, and this reader knows {SCHEMA_VERSION}:"
            " read it with the version of conformance that wrote it, or a newer one"
        )


def _cell(data: dict[str, Any]) -> CellRecord:
    if data["id"].count("/") != 3:
        raise ValueError(f"{data['id']!r} is no cell id")
    expected = str(data["expected"])
    return CellRecord(
        id=data["id"],
        promises=tuple(str(promise) for promise in data["promises"]),
        verdict=str(data["verdict"]),
        stage=data["stage"],
        anomaly=str(data["anomaly"]),
        witness=str(data["witness"]),
        seconds=_seconds(data["seconds"]),
        history=tuple(_event(event) for event in data["history"]),
        evidence=tuple((int(sequence), int(number)) for sequence, number in data["evidence"]),
        status=ExpectationStatus(data["status"]),
        expected=expected,
        known=_known(expected, data["known"]),
        on_cpu=_known(str((data.get("on_cpu") or {}).get("verdict", data["verdict"])), data.get("on_cpu")),
        attempts=int(data["attempts"]),
        reproduce=str(data["reproduce"]),
        repetition=Repetition.from_json(data["repeated"]) if data.get("repeated") else None,
        refusal=str(data.get("cause", "")),
        refused=bool(data.get("refused")),
        shown=str(data.get("shown", "")),
        entry=str(data.get("entry", "")),
    )


def _known(verdict: str, entry: dict[str, Any] | None) -> Known | None:
    if not entry:
        return None
    return Known(verdict, str(entry["reason"]), str(entry["link"]), bool(entry["intermittent"]))


def _event(data: dict[str, Any]) -> dict[str, Any]:
    """One run of a callback's host function, in which numbers are numbers."""
    numbers = {name: int(data[name]) for name in ("sequence", "thread", "begin", "end")}
    device = None if data["device"] is None else int(data["device"])
    texts = {name: str(data[name]) for name in ("site", "transforms")}
    return numbers | texts | {"device": device, "value": data["value"]}
