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
    if sys.argv[1:2] and sys.argv[1] not in commands.MODULES:
        from . import report

        if sys.argv[1] in (*report.COMMANDS, "--version"):
            # Reading results does not need JAX, and a CI system that makes reports may not have it.
            return report.main()
    return commands.main()
