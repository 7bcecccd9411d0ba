"""The words of an error of the operating system: the file first, as in all messages of the commands."""

from __future__ import annotations


def words_of(error: BaseException) -> str:
    """The text of an error; of one that names a file, without the number that only the system knows."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
