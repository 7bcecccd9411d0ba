"""What the commands share that run cells with other releases of JAX."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..bisecting.line import tell
from ..engine.interrupts import terminated_like_interrupted
from ..engine.options import RunOptions, add_selection
from ..releases.environments import Installer, Release, ReleaseError
from ..releases.journal import RunJournal, Shown
from .helping import add_deadline, add_patterns


def add_options(parser: argparse.ArgumentParser, results: str) -> None:
    """Add the options of selections, of environments and of their runs."""
    add = parser.add_argument
    add_patterns(add)
    add(
        "--python",
        default=sys.executable,
        metavar="PYTHON",
        help="a version like 3.12, or the path of an interpreter; by default this one",
    )
    add("--find-links", type=Path, metavar="DIR", help="a folder with all wheels: no index is asked")
    add_deadline(add, what="for each run")
    add("--results", type=Path, default=Path(results), metavar="DIR", help="where finished runs are kept")
    add("--resume", action="store_true", help="go on with the finished runs")
    add_selection(add)


@contextlib.contextmanager
def running(
    options: argparse.Namespace, read: Callable[[dict[str, Any]], Shown]
) -> Iterator[tuple[Installer, RunJournal[Shown]]]:
    """What the runs of a command need: environments that are gone when it ends, and the journal of its results.

    `read` makes a result of what the journal has of it.
    """
    if options.find_links and not options.find_links.is_dir():
        raise ReleaseError(f"there is no folder {options.find_links} with wheels")
    options.results.mkdir(parents=True, exist_ok=True)
    with (
        terminated_like_interrupted(),
        tempfile.TemporaryDirectory(prefix="environments-", dir=options.results) as place,
        contextlib.closing(RunJournal(options.results / "runs.jsonl", options.resume, read)) as journal,
    ):
        links = options.find_links and options.find_links.resolve()
        yield Installer(Path(place).resolve(), options.python, links), journal


def between(installer: Installer, first: str, last: str) -> list[Release]:
    """The releases from one to another; an end that is not given is the last that can be installed."""
    # It may ask once for each release.
    tell(f"asking which releases of JAX can be installed with the Python {installer.python}")
    found = installer.between(first, last)
    if not (first and last):
        # A Python cannot install all releases.
        ends = f"from {found[0].label} to {found[-1].label}"
        tell(f"{ends}, which are those for the Python {installer.python}; --python names another one")
    return found


def repeated(options: argparse.Namespace) -> str:
    """The options of environments and runs that another command needs for the same outcomes."""
    own = [] if options.python == sys.executable else ["--python", options.python]
    own += ["--find-links", str(options.find_links)] if options.find_links else []
    own += [] if options.deadline == RunOptions.deadline else ["--deadline", f"{options.deadline:g}"]
    return shlex.join(own)


def conditions(options: argparse.Namespace) -> str:
    """What outcomes depend on, beside the release and what runs there."""
    return f"deadline {options.deadline:g}, Python {options.python}"


def cells_of(options: argparse.Namespace, named: Sequence[str]) -> list[str]:
    """The ids of the selected cells: those named, or those of the installed JAX's plan."""
    from ..engine.preparation import plan_of
    from ..planning.plan_file import read_cells

    found = [cell.id for cell in read_cells(named, any_release=True)]
    if options.patterns or not found:
        options.smoke = options.smoke or not options.patterns
        found += [cell.id for cell in plan_of(options).select(options.patterns).cells]
    return list(dict.fromkeys(found))
