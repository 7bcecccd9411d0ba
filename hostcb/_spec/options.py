"""Arguments that a public function does not take: the error names the option that was probably meant (H1, H3)."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from .naming import shown

F = TypeVar("F", bound=Callable[..., Any])

# Options of host_callback that hostcb does not have.
_GONE = {"callback_flavor": "hostcb has one implementation of callbacks: remove the option."}


def takes_no_others(function: F) -> F:
    """Hide from the signature the arguments that `function` takes only to refuse them."""
    signature = inspect.signature(function)
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    kept = [each for each in signature.parameters.values() if each.kind not in variable]
    function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return function


def refuse_others(function: Callable[..., Any], more: Sequence[Any], unknown: dict[str, Any], advice: str) -> NoReturn:
    """Raise the `TypeError` for positional arguments and options that `function` does not have."""
    parameters = inspect.signature(function).parameters.values()
    options = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    if unknown:
        name = next(iter(unknown))
        raise no_option(function.__name__, name, nearest(name, options), advice)
    count = len(parameters) - len(options)
    arguments = "argument" if count == 1 else "arguments"
    raise TypeError(f"{function.__name__} takes {count} positional {arguments}, but got {count + len(more)}. {advice}")


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
