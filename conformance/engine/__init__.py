"""The engine: pytest runs the cells, each an item, and xdist spreads them over processes.

A pytest process never imports JAX. It keeps one worker process (`conformance.processes`) in flight and
hands it one cell after another, so what a cell does to its process pytest only hears of.
"""

from __future__ import annotations

import importlib.util


class MissingToolError(Exception):
    """What the engine consists of is not installed."""


def require_tools(workers: int) -> None:
    """Say what is missing before anything is imported that needs it."""
    needed = ("pytest", "xdist") if workers > 1 else ("pytest",)
    if any(importlib.util.find_spec(module) is None for module in needed):
        way_out = "; with -n 1 pytest alone is enough" if workers > 1 else ""
        raise MissingToolError(f"running cells needs pytest and pytest-xdist: pip install pytest pytest-xdist{way_out}")
