"""The packages that the engine needs. This module needs none of them."""

from __future__ import annotations

import importlib.util

from ..spec.errors import CommandError


def require_distributed() -> None:
    """Report that the client of a Dask cluster is missing."""
    require_pytest(1)
    if importlib.util.find_spec("distributed") is None:
        raise CommandError(
            "a Dask cluster needs the package distributed: pip install 'hostcb-conformance[distributed]'"
        )


def require_pytest(workers: int) -> None:
    """Report a missing package before a module that needs it is imported."""
    needed = ("pytest", "xdist") if workers > 1 else ("pytest",)
    if any(importlib.util.find_spec(module) is None for module in needed):
        way_out = "; with -n 1 pytest alone is enough" if workers > 1 else ""
        raise CommandError(f"running cells needs pytest and pytest-xdist: pip install pytest pytest-xdist{way_out}")
