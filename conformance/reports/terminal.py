"""What a run prints at its end: the causes of what is unexpected, and one block of facts as the last thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..spec.package import command_here
from .causes import grouped
from .results import RunRecord, known_failures
from .visible import clipped, in_a_line, visible

PAGE = "index.html"
"""The page that a run writes, in the folder of its results."""

MOST_CAUSES = 25
"""The page has all of them."""

MOST_KNOWN = 10

MOST_REPEATED = 100

GREEN, RED, PLAIN = "\033[1;32m", "\033[1;31m", "\033[0m"


def summary(
    run: RunRecord,
    notes: Sequence[str] = (),
    *,
    page: Path | None = None,
    go_on: str = "",
    known: bool = False,
    colour: bool = False,
) -> str:
    """The lines; `notes` come before the block, and `known` adds why failures are known."""
    before = [*_before(run, known), *notes]
    return "\n".join([*([visible("\n".join(before)), ""] if before else []), *_block(run, page, go_on, colour)])


def _before(run: RunRecord, known: bool) -> Iterator[str]:
    groups = grouped(run)
    for group in groups[:MOST_CAUSES]:
        kind, _, rest = group.title.partition(":")
        yield in_a_line(f"{kind.upper()}:{rest}: {group.where}")
        yield from (f"    {line}" for line in group.witness)
        yield from (f"    {in_a_line(note)}" for note in group.notes)
        yield f"    {command_here(group.example.reproduce)}"
    if len(groups) > MOST_CAUSES:
        yield f"... and {len(groups) - MOST_CAUSES} more causes, which the page has"
    why = list(known_failures(run.cells).items()) if known else []
    for entry, failed in why[:MOST_KNOWN]:
        which = failed[0].id if len(failed) == 1 else f"{len(failed)} cells, {failed[0].id} for one"
        yield in_a_line(f"KNOWN FAILURE: {entry.verdict}: {which}")
        yield f"    {in_a_line(' '.join(entry.reason.split()))}"
        yield f"    {in_a_line(entry.link)}"
        yield from (f"    {clipped(line)}" for line in failed[0].witness.strip().splitlines()[:1])
    if len(why) > MOST_KNOWN:
        yield f"... and {len(why) - MOST_KNOWN} more reasons of known failures, which the page has"
    repeated = [(cell.id, cell.repetition) for cell in run.cells if cell.repetition]
    repeated.sort(key=lambda one: -one[1].rate)
    yield from (f"{cell_id}: {repetition.words}" for cell_id, repetition in repeated[:MOST_REPEATED])
    if len(repeated) > MOST_REPEATED:
        yield f"... and {len(repeated) - MOST_REPEATED} more repeated cells"
    yield from (in_a_line(f"PROBLEM: {problem}") for problem in run.problems)
    yield from (f"{'CLAIM FAILED: ' if claim.failed else ''}{claim.sentence}" for claim in run.claims)


def _block(run: RunRecord, page: Path | None, go_on: str, colour: bool) -> Iterator[str]:
    verdict = "PASS" if run.good else "FAIL"
    yield f"{GREEN if run.good else RED}{verdict}{PLAIN}" if colour else verdict
    facts = run.facts | {"page": str(page) if page else "", "go on": command_here(go_on)}
    yield from (in_a_line(f"  {name:<12}{value}") for name, value in facts.items() if value)
