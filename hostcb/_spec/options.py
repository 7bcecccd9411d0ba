"""Options that are texts or labels by a slip: the error names the option that was probably meant (H2, X4)."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .naming import shown

# Options of host_callback that hostcb does not have.
_GONE = {"callback_flavor": "hostcb has one implementation of callbacks: remove the option."}


def no_option(function: str, name: str, meant: str | None, advice: str = "") -> TypeError:
    """Return the error for an option that a function does not have."""
    if name in _GONE:
        return TypeError(f"{function} has no option {name!r}: {_GONE[name]}")
    return TypeError(f"{function} has no option {name!r}{_asked(meant)} {advice}".rstrip())


def _asked(meant: str | None) -> str:
    return "." if meant is None else f"; did you mean {meant}?"


def refuse_misspelled(function: str, labels: dict[str, Any], options: Sequence[str]) -> None:
    """Refuse labels whose name is one of these options but for a slip: it would be printed, and not be in force."""
    for name in labels:
        meant = nearest(name, options, closeness=0.91)
        # The plural of a word is a label of its own.
        if name in _GONE or (meant is not None and not (name == f"{meant}s" and "_" not in name)):
            raise no_option(function, name, meant, "Rename the label if it is one.")


@functools.lru_cache(maxsize=1024)
def _nearest(name: str, options: tuple[str, ...], closeness: float) -> str | None:
    return next(iter(difflib.get_close_matches(name, options, n=1, cutoff=closeness)), None)


def nearest(name: str, options: Sequence[str], closeness: float = 0.82) -> str | None:
    """Return the option of which `name` is probably a misspelling; None if there is none."""
    return _nearest(name, tuple(options), closeness)


def check_truth(function: str, **options: Any) -> None:
    """Refuse a text, or another object, for an option that is on or off."""
    for name, value in options.items():
        if type(value) is not bool and not isinstance(value, (int, np.bool_)):
            raise TypeError(f"{function}: {name} must be True or False, got {shown(value)} of {type(value)}.")
