"""`python -m conformance`; where a wheel is installed, `hostcb-conformance` is the same."""

from __future__ import annotations

import sys

from .cli.commands import script

if __name__ == "__main__":
    sys.exit(script())
