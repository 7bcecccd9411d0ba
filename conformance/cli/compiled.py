"""The option `--compiled` of `run`: compiled programs that are kept from run to run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..engine.options import AddOption
from ..engine.preparation import ConflictingOptionsError
from ..spec.depths import Depth
from ..worker.kept import FOLDER, why_not


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


def check(folder: Path | None, platform: str, depth: Depth) -> None:
    """Raise `ConflictingOptionsError` if what the cells compile cannot be kept."""
    if folder and (reason := why_not(platform, depth)):
        raise ConflictingOptionsError(f"--compiled {folder}: {reason}")


@contextmanager
def in_force(folder: Path | None) -> Iterator[None]:
    """Let the workers keep their programs in this folder, or compile all of them."""
    before = os.environ.pop(FOLDER, None)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[FOLDER] = str(folder.absolute())
    try:
        yield
    finally:
        os.environ.pop(FOLDER, None)
        if before is not None:
            os.environ[FOLDER] = before
