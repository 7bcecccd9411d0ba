"""Prints as callbacks of a user function: what is printed becomes the operand of that function.

So a case for any kind of callback can ask `id_print` and `debug.print`, too.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...implementations.host_functions import StandardOutput, parse_array

Host = Callable[[Any], Any]


def _operand(text: str) -> Any:
    """The array that was printed; the text itself, if it is no array of numbers."""
    try:
        return parse_array(text)
    except (ValueError, SyntaxError):
        return text.strip()


@dataclass(frozen=True)
class PrintingTo:
    """The `output_stream` of an `id_print`, whose writes are calls of a function."""

    host: Host

    def write(self, text: str) -> int:
        self.host(_operand(text))
        return len(text)


class _StandardOutput(StandardOutput):
    """Calls functions with what `debug.print` prints for them."""

    PATTERN = r"case (\d+): (.*?)\s*"

    def keep(self, name: str, text: str) -> None:
        if host := _HOSTS.get(int(name)):
            host(_operand(text))


_numbers = itertools.count()
_HOSTS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By the number in the text. The case keeps the functions alive."""


def format_for(host: Host) -> str:
    """A format for `x`, whose prints call this function until it is gone."""
    if not isinstance(sys.stdout, _StandardOutput):
        sys.stdout = _StandardOutput(sys.stdout)
    number = next(_numbers)
    _HOSTS[number] = host
    return f"case {number}: {{x}}"
