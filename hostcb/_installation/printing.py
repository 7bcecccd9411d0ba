"""The text of `jax.debug.print`, and the check of its format string, with the ways of JAX's own (H27)."""

from __future__ import annotations

import dataclasses
import string
import sys
from typing import Any

import numpy as np

from .._api.formatting import FormatChecker, MissingNameError, MissingPositionError
from .._api.printing import write
from .._spec.naming import shown


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
    if not isinstance(text, str):
        raise TypeError(f"debug.print: the format must be a string, got {shown(text)} of {type(text)}.")
    try:
        _Checker().vformat(text, args, kwargs)
    except (MissingPositionError, MissingNameError) as error:
        # Without the frames of Python's formatter.
        raise type(error)(f"debug.print: the format string {text!r} {error}") from None


@dataclasses.dataclass(frozen=True)
class Printer:
    """The function behind `jax.debug.print`; printers with equal fields are equal, so printing twice compiles once."""

    text: str
    # NumPy's print options at tracing time.
    print_options: tuple[tuple[str, Any], ...]

    @property
    def __name__(self) -> str:
        return repr(self.text)

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        if self._is_format() or kwargs:
            with np.printoptions(**dict(self.print_options)):
                line = self.text.format(*args, **kwargs)
        else:
            line = " ".join((self.text, *map(str, args)))
        # One write, as JAX's: a stream of the program's own may count them.
        write(line + "\n", sys.stdout)

    def _is_format(self) -> bool:
        # JAX looks for a field at the beginning alone, up to the first doubled brace. So it prints the braces of a
        # text such as "{{x}}" as they are.
        fields = [field for _, field, _, _ in string.Formatter().parse(self.text)]
        return fields[:1] not in ([], [None])
