"""An interrupt, or another program, at any line of the runtime, as under a debugger or a profiler in Python."""

from __future__ import annotations

from typing import Any

import pytest
from support.subprocesses import run_program

from hostcb._native.library import library

pytestmark = pytest.mark.contract("H5", "H12", "H13", "H29")

NATIVE = pytest.mark.parametrize(
    "native",
    [
        "0",
        pytest.param(
            "1",
            marks=pytest.mark.skipif(library.problem is not None, reason=f"native extension: {library.problem}"),
        ),
    ],
)


@NATIVE
@pytest.mark.parametrize("what", ["interrupt", "nest"])
@pytest.mark.parametrize(("event", "part"), [("line", "0/7"), ("opcode", "0/61")])
def test_nothing_is_lost_and_nothing_hangs(what: str, native: str, event: str, part: str) -> None:
    environment = {"HOSTCB_NATIVE": native}
    ended: Any = run_program(
        "interrupted_lines.py", what, part, event, devices=None, env=environment, timeout=200
    ).json()
    assert ended["found"] == []
    # The events of a program without hostcb's modules would be none.
    assert ended["events"] > 300 and ended["places"] > 20
