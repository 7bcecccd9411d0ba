"""Options of the commands that run cells with other releases of JAX."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..engine.options import ConflictingOptionsError, add_selection
from ..engine.preparation import SUPPORTED, plan_of
from ..planning.cells import parse_cell
from ..planning.plan_file import read_plan
from ..releases.installing import Installer
from ..releases.release import OLDEST, Release, ReleaseError
from ..spec.versions import version_key, version_matches
from ..worker.stress import stress
from .helping import add_deadline


def add_installing(parser: argparse.ArgumentParser) -> None:
    """Add the options of environments and of their runs."""
    add = parser.add_argument
    add(
        "--python",
        default=sys.executable,
        metavar="PYTHON",
        help="a version like 3.12, or the path of an interpreter; by default this one",
    )
    add("--find-links", type=Path, metavar="DIR", help="a folder with all wheels: no index is asked")
    add_deadline(add, what="for each run")
    add("--stress", action="store_true", help="keep all cores busy meanwhile: races need it")
    add("--resume", action="store_true", help="go on with the finished runs")
    add_selection(add)


@contextlib.contextmanager
def installer_of(options: argparse.Namespace, folder: Path) -> Iterator[Installer]:
    """An installer whose environments are in this folder of results until the command ends."""
    if options.find_links and not options.find_links.is_dir():
        raise ReleaseError(f"there is no folder {options.find_links} with wheels")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="environments-", dir=folder) as place:
        yield Installer(Path(place).resolve(), options.python, options.find_links and options.find_links.resolve())


def stressed(asked: bool) -> contextlib.AbstractContextManager[object]:
    return stress() if asked else contextlib.nullcontext()


def cells_of(options: argparse.Namespace, cells: Sequence[str], plan: Path | None, newest: str) -> list[str]:
    """The ids of the selected cells: those named, or those of the installed JAX's plan."""
    named = [*cells, *(cell.id for cell in read_plan(plan))] if plan else [*cells]
    if options.patterns or not named:
        if not (options.implementations or version_matches(newest, SUPPORTED)):
            # An old release has JAX's own callbacks alone.
            options.implementations = ["jax"]
        options.smoke = options.smoke or not options.patterns
        named += [cell.id for cell in plan_of(options).select(options.patterns).cells]
    if not named:
        raise ConflictingOptionsError(f"no cell matches {' or '.join(options.patterns)}")
    return list(dict.fromkeys(parse_cell(cell, any_release=True).id for cell in named))


def releases_of(words: Sequence[str], last: int | None, installer: Installer) -> list[Release]:
    """The releases that the words name, the oldest first."""
    if not words and last is None:
        raise ConflictingOptionsError("name releases, like 0.6.2 0.7.0 or 0.6.0..0.8.3, or use --last 8")
    found: set[Release] = set()
    for word in words:
        first, dots, end = word.partition("..")
        if dots:
            found |= {*releases_between(first or OLDEST, end, installer)}
        else:
            found.add(Release.parse(word))
    found |= {Release(version) for version in itertools.islice(installer.published(), last or 0)}
    return sorted(found)


def releases_between(first: str, last: str, installer: Installer) -> list[Release]:
    """The releases that can be installed from one to another, with these two."""
    ends = [Release.parse(first), *([Release.parse(last)] if last else [])]
    if last and version_key(last) < version_key(first):
        raise ReleaseError(f"{first}..{last} is no range of releases: {last} is older than {first}")
    inside = {Release(version) for version in installer.published(first, last)}
    # An end that cannot be installed says so itself.
    return sorted({*ends, *inside})
