"""`pytest.mark.contract("H5")` says which promises of docs/contract.md a test holds, and is refused where it errs."""

from __future__ import annotations

import promises
import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module whose markers name no promise, or one that does not exist, is not collected."""
    for mark in metafunc.definition.iter_markers("contract"):
        if complaint := promises.complaint(mark.args):
            pytest.fail(f"{metafunc.function.__name__}: {complaint}", pytrace=False)
