"""No public name comes, goes or takes other arguments by accident."""

from __future__ import annotations

import difflib

import public_names
import pytest


@pytest.mark.contract("H1", "H2", "H3", "X2", "X3", "X4", "B1", "D1")
def test_public_names_and_signatures_are_those_of_the_snapshot() -> None:
    stored = public_names.FILE.read_text(encoding="utf-8").splitlines()
    changes = "\n".join(
        difflib.unified_diff(stored, public_names.snapshot().splitlines(), "stored", "now", lineterm="")
    )
    assert not changes, f"if this is meant, say so in CHANGELOG.md and renew it: {public_names.COMMAND}\n{changes}"
