"""The packages that the engine needs, and the errors of what is not there. It needs none of them itself."""

from __future__ import annotations

import importlib.util

from ..spec.errors import CommandError


class MissingRequirementError(CommandError):
    """A package that the engine needs is not installed."""


class DaskClusterError(CommandError):
    """A Dask cluster that cannot run the cells."""


def require_distributed() -> None:
    """Report that the client of a Dask cluster is missing."""
    require_pytest(1)
    if importlib.util.find_spec("distributed") is None:
        raise MissingRequirementError(
            "a Dask cluster needs the package distributed: pip install 'hostcb-conformance[distributed]'"
        )


def require_pytest(workers: int) -> None:
    """Report a missing package before a module that needs it is imported."""
    needed = ("pytest", "xdist") if workers > 1 else ("pytest",)
    if any(importlib.util.find_spec(module) is None for module in needed):
        way_out = "; with -n 1 pytest alone is enough" if workers > 1 else ""
        raise MissingRequirementError(
            f"running cells needs pytest and pytest-xdist: pip install pytest pytest-xdist{way_out}"
        )
