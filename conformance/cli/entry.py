"""The entry point of `python -m` and of the console script."""

from __future__ import annotations

import os
import sys

from . import commands


def main() -> int:
    """Run the command that `sys.argv` holds."""
    # `python -m` finds modules in the current folder, so a console script finds implementations there as well.
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    return commands.main()
