"""Each command of the suite that a page shows has options which the command line accepts."""

from __future__ import annotations

import re
import shlex

import pytest
from support import pages

from conformance.cli.commands import parsed

WITHOUT_A_VALUE = {"bisect --script"}
"""What a sentence names without the value of its last option."""

COMMAND = re.compile(r"(?:python -m conformance|hostcb-conformance) ([^`\n]*)")


def commands() -> dict[str, list[str]]:
    """The arguments of each command, by its text; where a page has K or N, they have a number."""
    found = {}
    for page in pages.pages():
        for _, part in pages.parts(page):
            text = part.text if isinstance(part, pages.Block) else "\n".join(re.findall(r"`([^`]+)`", part))
            for command in COMMAND.findall(text):
                line = re.sub(r"(?<=[ /])[KN]\b", "2", command)
                # What follows is the shell's.
                arguments = shlex.split(re.split(r" (?:>>?|&&|;) |; ", line)[0], comments=True)
                if command not in WITHOUT_A_VALUE and not {"...", "…", "-h"} & {*arguments}:
                    found[command] = arguments
    return found


@pytest.mark.parametrize("command", sorted(commands()))
def test_a_command_on_a_page_is_accepted(command: str) -> None:
    arguments = commands()[command]
    assert parsed(arguments).command == arguments[0]
