"""What a barrier logs while it waits."""

from __future__ import annotations

import pytest

from hostcb._runtime.executions.outstanding import Outstanding, listed


@pytest.mark.contract("H13")
def test_equal_names_are_counted() -> None:
    """A queue may hold thousands of values for one callback."""
    found = [Outstanding("a", "waits", ("cpu:0",), 3), Outstanding("b", "waits", ("cpu:1", "cpu:2"), 1)]
    assert listed(found) == "3 x a, waiting on cpu:0; b, waiting on cpu:1, cpu:2"
    assert listed([]) == "nothing"
