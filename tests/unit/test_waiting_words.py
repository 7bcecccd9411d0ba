"""What a barrier logs while it waits."""

from __future__ import annotations

import pytest

from hostcb._runtime.barrier import _listed


@pytest.mark.contract("H13")
def test_equal_names_are_counted() -> None:
    """A queue may hold thousands of values for one callback."""
    assert _listed(["a waits on cpu:0"] * 3 + ["b waits on cpu:1"]) == "3 x a waits on cpu:0; b waits on cpu:1"
    assert _listed([]) == ""
