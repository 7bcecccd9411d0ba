"""Where the results of a run of chosen cells go: they never replace those of a full run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..reports.results import full_run_in
from ..spec.errors import CommandError

RESULTS = Path("results")
"""Where the results of a full run go by default."""

SELECTION = RESULTS / "selection"
"""Where those of chosen cells go by default."""


class FullResultsError(CommandError):
    """The results folder that the user has named for some cells has the results of all cells."""


def choose_folder(options: Any, patterns: Sequence[str]) -> None:
    """Give a run of chosen cells a folder of its own, unless the user has named one."""
    chosen = (options.plan_file, options.cell_ids, patterns, options.smoke)
    # The default itself, and no equal path of the user.
    if options.results is RESULTS and any(chosen) and not options.retry_missing:
        options.results = SELECTION


def check_folder(results: Path, name: str, whole: bool) -> None:
    """Refuse a run of chosen cells where the results of a full run are; `name` is that in the results' files."""
    if not whole and full_run_in(results, name):
        raise FullResultsError(
            f"{results} has the results of a full run, which those of some of its cells would replace: name another"
            f" folder with --results, or leave it out for {SELECTION}"
        )
