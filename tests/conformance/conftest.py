"""The suite runs callbacks in processes of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """Nothing is started here that a barrier of this process could wait for."""
