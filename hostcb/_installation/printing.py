"""The text of `jax.debug.print`, and the check of its format string, with the ways of JAX's own (H27)."""

from __future__ import annotations

import dataclasses
from typing import Any

from .._api.formatting import FormatChecker, FormatPrinter, check_text


class _Checker(FormatChecker):
    """JAX looks for missing and unused arguments alone: a specification that does not fit fails when it prints."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""


def check_arguments(text: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a format string for which arguments are missing or left over.

    Raises:
        TypeError: `text` is no string.
        ValueError: the string is malformed, or an argument is missing (then also an `IndexError` or a `KeyError`) or
            unused.
    """
    check_text(text)
    _Checker().check(text, args, kwargs)


@dataclasses.dataclass(frozen=True)
class Printer(FormatPrinter):
    """The function behind `jax.debug.print`."""

    def line(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        # JAX looks for a field at the beginning alone, up to the first doubled brace. So it prints the braces of a
        # text such as "{{x}}" as they are.
        if self.fields()[:1] not in ([], [None]) or kwargs:
            return self.formatted(args, kwargs)
        return " ".join((self.text, *map(str, args)))
