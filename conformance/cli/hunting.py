"""What the commands `bisect` and `bisect-run` share: their options, and a search that keeps what it finds out."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bisecting import findings
from ..bisecting.bisection import Answer, Found, Kind, Search
from ..bisecting.evidence import CONFIDENCE, MOST_RUNS, Rule, rule_of
from ..bisecting.findings import Place
from ..bisecting.probe_journal import ProbeJournal
from ..bisecting.probing import Journaled
from ..bisecting.searching import Prober, Samples, answers
from ..bisecting.subjects import Cells, Question, Script
from ..engine.options import positive
from ..engine.preparation import SUPPORTED, ConflictingOptionsError, plan_of
from ..planning.cells import parse_cell
from ..worker.stress import stress


def add_running(add: Callable[..., Any], comparing: bool = True) -> None:
    """Add the options for how often a subject runs, and how; `comparing` tells whether rates are compared."""
    often = "run so often in each release, and compare rates" if comparing else "run so often; each run must be good"
    add("--runs", type=positive(int), metavar="N", help=often)
    if comparing:
        add(
            "--confidence",
            type=_probability,
            metavar="P",
            help=f"run as often as this confidence needs, like {CONFIDENCE}; at most --runs, by default {MOST_RUNS}",
        )
    add("--stress", action="store_true", help="keep all cores busy meanwhile: races show more often")
    add("--deadline", type=positive(float), default=60.0, metavar="SECONDS", help="for each run")
    add(
        "--compare",
        choices=("all", "verdict"),
        default="all",
        help="'verdict' ignores the stage and the kind of anomaly of a cell, and the output of a script",
    )


def question_of(options: argparse.Namespace, without_hostcb: bool = False) -> Question:
    """What the options ask; raises `UnknownCellError`."""
    verdict_alone = options.compare == "verdict"
    if options.script:
        return Script(options.script, options.deadline, verdict_alone)
    cells = [parse_cell(cell, any_release=True).id for cell in options.cells]
    if options.patterns:
        if without_hostcb and not options.implementations:
            tell(f"NOTE: -k selects JAX's own callbacks: hostcb needs JAX {SUPPORTED.removeprefix('>=')} or newer")
            options.implementations = ["jax"]
        selected = [cell.id for cell in plan_of(options).select(options.patterns).cells]
        if not selected:
            raise ConflictingOptionsError(f"no cell answers to {' or '.join(options.patterns)}")
        cells += selected
    return Cells(tuple(dict.fromkeys(cells)), options.deadline, options.results / "workers.log", verdict_alone)


@dataclass(frozen=True)
class Hunt:
    question: Question
    rule: Rule
    journal: ProbeJournal
    conditions: str
    several: bool = False
    """Whether several releases can be tried at once."""

    def search(
        self, search: Search[Found], probe: Prober, places: Sequence[Place], subjects: Sequence[str], known: Samples
    ) -> tuple[Mapping[str, Found], Samples]:
        """The answers, and all runs of this line of places; `known` holds runs from elsewhere."""
        journaled = Journaled(probe, self.journal, places, self.conditions, tell)
        samples = journaled.known(subjects)
        for subject, runs in known.items():
            samples[subject] |= runs
        return answers(subjects, search, self.rule, journaled, samples, self.several), samples


@contextlib.contextmanager
def hunting(options: argparse.Namespace, question: Question, where: str = "") -> Iterator[Hunt]:
    """A hunt with the journal in the folder of results, and load on the machine if that was asked for.

    `where` names what outcomes depend on besides the place in the line and the question.
    """
    rule = rule_of(options.runs, options.confidence)
    conditions = ", ".join(filter(None, (question.conditions, where, "stress" * options.stress)))
    # The load belongs where the subjects run.
    busy = stress() if options.stress and not options.scheduler else contextlib.nullcontext()
    with contextlib.closing(ProbeJournal(options.results, options.resume)) as journal, busy:
        yield Hunt(question, rule, journal, conditions, bool(options.scheduler))


def conclude(
    hunt: Hunt,
    found: Mapping[str, Answer],
    samples: Samples,
    places: Sequence[Place],
    folder: Path,
    good: int | None,
) -> int:
    """Print and keep what was found, and return the exit code; `good` is the end that the user calls so."""
    text = findings.report(found, samples, places, hunt.rule)
    print(text)
    (folder / "findings.txt").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    if good is not None and (misnamed := [*_misnamed(found, samples, good)]):
        whose = misnamed[0] if len(misnamed) == 1 else f"{len(misnamed)} cells"
        tell(f"NOTE: --good and --bad are swapped: the end named good fails, and the other passes ({whose})")
    code = findings.exit_code([*found.values()])
    if code == findings.UNUSABLE:
        tell(f"ERROR: nothing can be found: {_why_unusable([*found.values()], places)}")
    return code


def _why_unusable(found: Sequence[Answer], places: Sequence[Place]) -> str:
    for answer in found:
        if answer.kind is Kind.UNTESTABLE:
            index, reason = answer.untestable[0]
            return f"{places[index].name} cannot be tested: {reason}"
    alone = next(answer for answer in found if answer.kind is Kind.ALONE)
    return f"only {places[alone.old].name} can be tested"


def _misnamed(found: Mapping[str, Answer], samples: Samples, good: int) -> Iterator[str]:
    """The subjects whose good end fails, and whose other end passes."""
    for subject, answer in found.items():
        bad = answer.new if good == answer.old else answer.old
        of_good, of_bad = samples[subject].get(good, ()), samples[subject].get(bad, ())
        if answer.changes and all(s.passed for s in of_bad) and not any(s.passed for s in of_good):
            yield subject


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def ending_orderly() -> Iterator[None]:
    """A signal that asks this process to end lets it clean up, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _probability(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.5 <= (number := float(text)) < 1:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no confidence like 0.99: it is from 0.5 to below 1")
