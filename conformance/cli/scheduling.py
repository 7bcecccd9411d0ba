"""The option `--scheduler` of the commands that try releases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..engine.dask_work import Work
from ..engine.tools import require_distributed
from ..planning.cells import parse_cell


def check_scheduler(address: str | None) -> None:
    """That the client of a Dask cluster is installed is asked before the index is, and before the plan."""
    if address:
        require_distributed()


def cluster_for(address: str, implementations: Sequence[str]) -> Work:
    return Work(address, implementations, "the releases")


def implementations_of(cells: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(parse_cell(cell, any_release=True).implementation for cell in cells))


def place_on_workers(folder: Path | None) -> Path | None:
    """A folder of environments that was named, for Dask workers, which have other current folders."""
    return folder.absolute() if folder else None
