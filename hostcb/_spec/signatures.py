"""Refuse functions that do not take what `id_tap` and `call` pass (H32)."""

from __future__ import annotations

import inspect
import types
from typing import Any

from .kinds import CALL, TAP, Kind
from .naming import RUNS_LATER, subject

_CALLED = {
    TAP: "id_tap calls tap_func(arg, transforms), and tap_func(arg, transforms, device=…) if tap_with_device=True.",
    CALL: "call calls callback_func(arg), with the whole of arg as one argument, and callback_func(arg, device=…) if "
    "call_with_device=True. For a function of several arguments write lambda arg: f(*arg).",
}


def check_signature(kind: Kind, function: Any, with_device: bool) -> None:
    """Raise `TypeError` if a call of `function` would, before any line of it runs."""
    arguments = (None, None) if kind.identity else (None,)
    if not with_device and is_plain_function(function, len(arguments)):
        return
    try:
        # A wrapper may pass on other arguments than it takes, so what it wraps says nothing.
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:
        # Functions in C may have none, and an object of the user's may raise any exception.
        return
    try:
        signature.bind(*arguments, **({"device": None} if with_device else {}))
    except TypeError as error:
        raise TypeError(
            f"{subject(kind.name, function)} takes ({', '.join(signature.parameters)}): {error}. {_CALLED[kind]}"
        ) from None


def is_plain_function(function: Any, count: int) -> bool:
    """Return whether this is surely a function of Python that takes `count` arguments: outside jit, each call asks."""
    if type(function) is not types.FunctionType or function.__dict__:
        return False
    code = function.__code__
    if code.co_kwonlyargcount or code.co_flags & RUNS_LATER:
        return False
    least = code.co_argcount - len(function.__defaults__ or ())
    return least <= count and (count <= code.co_argcount or bool(code.co_flags & inspect.CO_VARARGS))
