"""The name under which this package is imported: `conformance` in a checkout, `hostcb_conformance` in a wheel."""

from __future__ import annotations

PACKAGE = __name__.removesuffix(".spec.package")

COMMAND = "python -m conformance" if PACKAGE == "conformance" else "hostcb-conformance"
"""The command that a user types in this installation."""


def module(name: str) -> str:
    """The full name of a module of this package, by which another process imports it."""
    return f"{PACKAGE}.{name}"


KEEPS_HISTORIES = "CONFORMANCE_KEEPS_HISTORIES"
"""The variable by which a run with `--histories` tells its workers to report the history of every cell."""
