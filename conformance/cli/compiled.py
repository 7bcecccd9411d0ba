"""The option `--compiled` of `run`: compiled programs that are kept from run to run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..engine.options import AddOption
from ..engine.preparation import ConflictingOptionsError
from ..engine.run import Run
from ..worker.kept import why_not


def add_option(add: AddOption) -> None:
    add(
        "--compiled",
        type=Path,
        metavar="DIR",
        help="take compiled programs from this folder, and keep new ones there: on cpu, with JAX 0.12 or newer",
    )


def check_options(options: argparse.Namespace) -> None:
    """Raise `ConflictingOptionsError` if the cells are to run on other machines."""
    if options.compiled and (options.scheduler or options.distributed):
        raise ConflictingOptionsError(
            "--compiled names a folder of this machine: it goes neither with --scheduler nor with --distributed"
        )


def check(folder: Path | None, run: Run) -> None:
    """Raise `ConflictingOptionsError` if what the cells of a run compile cannot be kept in this folder."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise ConflictingOptionsError(f"--compiled {folder}: it is no folder")
    if reason := why_not(run.options.platform, run.options.depth):
        raise ConflictingOptionsError(f"--compiled {folder}: {reason}")
    if run.cells and all(cell.topology.processes > 1 for cell in run.cells):
        raise ConflictingOptionsError(
            f"--compiled {folder}: all of the cells are over several processes, of which each compiles its own part"
        )
