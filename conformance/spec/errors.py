"""The errors that end a command with a message instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """What somebody who runs a command can put right. The text is for that person, in one line."""


def words_of(error: BaseException) -> str:
    """The text of an error; of one that names a file, the file first, without the number that only the system knows."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
