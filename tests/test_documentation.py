"""What the documentation shows is what happens."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from types import ModuleType

import pytest
from subprocesses import run_program

from hostcb import _barrier, _host_callback

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("module", [_host_callback, _barrier], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0, f"{module.__name__} has no examples"
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples differ, see the output"


def test_the_example_of_the_readme() -> None:
    text = README.read_text()
    match = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL)
    assert match, "the README has an example with its output"
    source, output = match.groups()
    ended = run_program(source, devices=None, prelude="").check()
    assert ended.stdout == output, str(ended)
