"""The errors that end a command with a message instead of a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CommandError(Exception):
    """What somebody who runs a command can put right. The text is for that person, in one line."""


def words_of(error: BaseException) -> str:
    """The text of an error; of one that names a file, the file first, without the number that only the system knows."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: the known one that looks like it, or other words if none does."""
    alike = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {alike[0]}?" if alike else otherwise
