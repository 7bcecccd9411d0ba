"""The errors that end a command with a message instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """What somebody who runs a command can put right. The text is for that person, in one line."""
