"""The page for programs of host_callback and of JAX's own callbacks: the old and the new program print the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.subprocesses import run_program

PROJECT = Path(__file__).parents[2]
COMING_FROM = PROJECT / "docs" / "coming-from.md"


# JAX has no host_callback any more, so the old programs of its page find hostcb there.
STAND_IN = """
import hostcb
hostcb.install()
"""


def blocks_of(page: Path) -> list[tuple[str, list[str], str]]:
    """The programs of a page, by the blocks of output behind them: each program of a group has that output."""
    groups: list[tuple[str, list[str], str]] = []
    programs: list[str] = []
    title = ""
    for heading, language, block in re.findall(r"^## (.*?)$|^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if heading:
            title = heading
        elif language == "python":
            programs.append(block)
        else:
            groups.append((f"{title} {len(groups)}", programs, block))
            programs = []
    assert not programs, f"{page.name}: the last program has no output behind it"
    return groups


GROUPS = [pytest.param(*group, id=group[0]) for group in blocks_of(COMING_FROM)]


@pytest.mark.contract("X2", "X3", "X4", "H2", "H13", "H16")
@pytest.mark.parametrize(("title", "programs", "output"), GROUPS)
def test_the_programs_of_those_who_come_from_elsewhere(title: str, programs: list[str], output: str) -> None:
    """Of two programs side by side, the old one has the same output as the new one."""
    assert programs, f"{title}: an output without a program"
    for program in programs:
        stands_in = STAND_IN if "jax.experimental import host_callback" in program else ""
        ended = run_program(program, devices=2, prelude=stands_in).check()
        assert ended.stdout == output, str(ended)


def test_the_page_begins_with_the_quickest_way() -> None:
    text = COMING_FROM.read_text()
    assert "[Without touching the program](#without-touching-the-program)" in text[:1000] and "hostcb.install()" in text
    assert sum(len(programs) for _, programs, _ in blocks_of(COMING_FROM)) >= 6
