"""Fixtures of several files of the contract."""

from __future__ import annotations

import pytest
from support.printed_text import Printed


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)
