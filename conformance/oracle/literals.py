"""Values that were printed as Python writes them, read back where they come: in callbacks, in several threads."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

ATTEMPTS = 100


def literal(text: str) -> Any:
    """The value that the text is, as `ast.literal_eval` gives it.

    CPython 3.11 counts the depth of all threads that build a syntax tree in one number. If two of them do so at once,
    one may get a `SystemError`, "AST constructor recursion depth mismatch". No callback is to blame, so it tries again.
    """
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(SystemError):
            return ast.literal_eval(text)
    return ast.literal_eval(text)
