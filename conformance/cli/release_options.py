"""Options of the commands that run cells with other releases of JAX."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from ..engine.options import add_scheduler, add_selection, positive
from ..engine.preparation import ConflictingOptionsError, plan_of
from ..planning.cells import parse_cell
from ..planning.plan_file import read_plan
from ..releases.environments import Environments
from ..releases.index import index
from ..releases.pythons import OLDEST_PYTHON
from ..releases.release import Release, ReleaseError, Skipped


def add_cells(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cells of any release."""
    parser.add_argument("--cell", action="append", default=[], metavar="ID", dest="cell_ids", help="may be repeated")
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="EXPR", help="as for `run`")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a file with the id of a cell in each line")
    add_selection(parser.add_argument)


def add_environments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--environments", type=Path, metavar="DIR", help="the cache of environments; by default in the user's cache"
    )


def add_probing(parser: argparse.ArgumentParser) -> None:
    """Add the options for probes."""
    add_environments(parser)
    parser.add_argument("--python", type=_python, metavar="3.N", help="only environments with this version of Python")
    parser.add_argument("--deadline", type=positive(float), default=60.0, metavar="SECONDS", help="for each cell")
    parser.add_argument("--repeat", type=positive(int), default=1, metavar="N", help="how often each cell runs")
    parser.add_argument("--stress", action="store_true", help="keep all cores busy meanwhile: races need it")
    add_scheduler(parser.add_argument, "try each release")


def cells_of(options: argparse.Namespace) -> list[str]:
    """The ids of the selected cells: those named, or those of the installed JAX's plan."""
    if options.cell_ids and options.plan:
        raise ConflictingOptionsError("--cell and --plan cannot be used together")
    named = read_plan(options.plan) if options.plan else [parse_cell(one, any_release=True) for one in options.cell_ids]
    if named:
        if options.patterns:
            raise ConflictingOptionsError("-k selects from the plan of this JAX: use it without --cell and --plan")
        return list(dict.fromkeys(cell.id for cell in named))
    # An old release has JAX's own callbacks alone.
    options.implementations = options.implementations or ["jax"]
    options.smoke = options.smoke or not options.patterns
    chosen = [cell.id for cell in plan_of(options).select(options.patterns).cells]
    if not chosen:
        raise ConflictingOptionsError("no cell answers to that")
    return chosen


def environments_of(options: argparse.Namespace) -> Environments:
    return Environments(options.environments, options.python)


def releases_of(
    words: Sequence[str], last: int | None, environments: Environments
) -> tuple[list[Release], list[Skipped]]:
    """The releases that the words name, the oldest first, and those between them that cannot be had."""
    if not words and last is None:
        raise ConflictingOptionsError("name releases, like 0.6.2 0.7.0 or 0.6.0..0.8.3, or use --last 8")
    found: set[Release] = set()
    left_out: list[Skipped] = []
    for word in words:
        first, dots, end = word.partition("..")
        if dots:
            first_release, end_release = release_of(first, environments), release_of(end, environments)
            if end_release < first_release:
                raise ReleaseError(f"{word} is no range of releases: {end} is older than {first}")
            releases, skipped = index(environments.python).released()
            found.update(release for release in releases if first_release <= release <= end_release)
            left_out += [one for one in skipped if _between(one, first_release, end_release)]
        else:
            found.add(release_of(word, environments))
    if last is not None:
        found.update(index(environments.python).released()[0][-last:])
    return sorted(found), left_out


def check_page(file: Path | None) -> None:
    """That a page can be written is asked before all the runs, and not after them."""
    if file is not None and not file.parent.is_dir():
        raise ConflictingOptionsError(
            f"there is no folder {file.parent} for {file.name}: make it, or name another file"
        )
    if file is not None and file.is_dir():
        raise ConflictingOptionsError(f"{file} is a folder: name a file in it")


def lacking(last: int | None, environments: Environments) -> list[str]:
    """What to say if there are fewer releases than `--last` asks for."""
    there = len(index(environments.python).released()[0]) if last is not None else 0
    return [f"only {there} of the {last} releases that --last asks for are there"] if last and there < last else []


def release_of(word: str, environments: Environments) -> Release:
    """The release `JAX` or `JAX:JAXLIB`; the index is not asked for one whose environment is there."""
    jax, _, jaxlib = word.partition(":")
    release = Release(jax, jaxlib or jax)
    return release if environments.has(release) else index(environments.python).release(jax, jaxlib or None)


def _between(skipped: Skipped, first: Release, last: Release) -> bool:
    """Whether a release that cannot be had is in the range; ranges of old releases are not."""
    try:
        return first <= Release(skipped.release, skipped.release) <= last
    except ReleaseError:
        return False


def _python(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"3\.(\d+)", text)
    if not found or (3, int(found[1])) < OLDEST_PYTHON:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no version of Python, from {'.'.join(map(str, OLDEST_PYTHON))} on, like 3.12"
        )
    return 3, int(found[1])
