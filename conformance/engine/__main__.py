"""pytest with cells as its items: `python -m conformance.engine`, followed by pytest's options."""

from __future__ import annotations

import sys

import pytest

from .execution import OF_CELLS

if __name__ == "__main__":
    sys.exit(pytest.main([*OF_CELLS, *sys.argv[1:]]))
