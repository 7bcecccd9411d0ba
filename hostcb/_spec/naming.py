"""Names of user objects for messages. The object may be anything, so naming it must not fail and must end.

A proxy or a mock has every attribute, so following `__wrapped__` would never end. So an attribute counts only if it
exists without running `__getattr__`, and a chain of wrappers has a maximal length.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
import sysconfig
import types
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

# The folders of hostcb's own code and of JAX's, to recognise their frames.
PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
JAX = os.path.dirname(jax.__file__) + os.sep

_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})

# No real function has more wrappers.
MOST_WRAPPERS = 100

# In place of a device's name, where a callback has neither operands nor results that show it.
NO_DEVICE = "unknown"
# A longer text is cut: the repr of an array or of a model would hide the rest of the message.
MOST_CHARACTERS = 400

# The text of a value that JAX traces, such as "JitTracer(float32[3])"; a program may have a "RayTracer(3)" of its own.
_TRACED = re.compile(r"\b[A-Za-z]+Tracer\((?:aval=|primal=|~?(?:bool|u?int\d|b?float\d|complex\d|key<))")

# Control characters, halves of pairs that are no characters, and ends of lines.
_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}

_RESUMABLE = {
    inspect.CO_COROUTINE: "a coroutine function (async def)",
    inspect.CO_GENERATOR: "a generator function",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator function",
}
# The call of such a function makes an object and runs no line of it.
RUNS_LATER = functools.reduce(operator.or_, _RESUMABLE)


def describe(function: Callable[..., Any], called_at: str = "") -> str:
    """Return the name of a user function, with its file and line or those of the call, for messages."""
    inner = _innermost(function)
    named = _name_of(inner)
    if not named and (method := _of_class(inner)):
        inner, named = method, _name_of(method)
    name = first_line(named or shown(inner))
    code = attribute(inner, "__code__")
    if called_at:
        return f"{name} ({_seen(called_at)})"
    if not isinstance(code, types.CodeType):
        return name
    return f"{name} ({_seen(code.co_filename)}:{code.co_firstlineno})"


def _name_of(function: Any) -> str | None:
    return next(filter(None, (_text(function, "__qualname__"), _text(function, "__name__"))), None)


def _of_class(function: Any) -> types.FunctionType | None:
    """Return the method that runs if an object of a class of the program is called, as of a logger or a saver."""
    call = inspect.getattr_static(type(function), "__call__", None)
    if not isinstance(call, types.FunctionType):
        return None
    file = call.__code__.co_filename
    return None if file.startswith((PACKAGE, JAX)) or is_installed(file) else call


@functools.cache
def is_installed(file: str) -> bool:
    """Return whether a file of Python is of an installed package or of Python itself, and not of the user's program."""
    return file.startswith(_INSTALLED) or "site-packages" in file or "dist-packages" in file


def place_of_call(function: Callable[..., Any], frames: Callable[[], Iterable[tuple[str, int]]]) -> str:
    """Return the line of the user's program that calls back, if the function is of another package; "" otherwise.

    The line of the function itself would be in a file that the user has never seen, such as NumPy's.

    Args:
        function: the function that is called back.
        frames: returns the file and the line of each frame around the call of hostcb, the innermost first.
    """
    # Nearly every function is a plain one of the user's, and outside jit each call asks.
    is_plain = type(function) is types.FunctionType and not function.__dict__
    inner = function if is_plain else _innermost(function)
    code = function.__code__ if is_plain else attribute(inner, "__code__")
    has_place = isinstance(code, types.CodeType)
    if not (is_installed(code.co_filename) if has_place else isinstance(inner, (types.BuiltinFunctionType, np.ufunc))):
        return ""
    callers = [(file, line) for file, line in frames() if not file.startswith((PACKAGE, JAX))]
    users = [caller for caller in callers[: 1 if has_place else None] if not is_installed(caller[0])]
    return f"{users[0][0]}:{users[0][1]}" if users else ""


def subject(kind: str, function: Callable[..., Any]) -> str:
    """Return the beginning of an error's first line: the public name of the kind, and the user's function."""
    return f"{kind}: {describe(function)}"


def shown(value: Any) -> str:
    """Return the `repr` of any object, cut if it is long."""
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__qualname__} object, whose repr raises {type(error).__name__}>"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def shows_tracer(text: str) -> bool:
    """Return whether a text, such as that of an f-string, has the `repr` of a value that JAX traces."""
    return _TRACED.search(text) is not None


def first_line(text: str) -> str:
    """Return the first line of a text, with a mark if that is not all of it, and with escapes for what nobody sees."""
    first, _, rest = text.partition("\n")
    if len(first) > MOST_CHARACTERS:
        return f"{_seen(first[:MOST_CHARACTERS])}…"
    return f"{_seen(first)} …" if rest.strip() else _seen(first)


def transferable(text: str) -> str:
    """Return a text without what C++ cannot take: jaxlib crashes at half a surrogate pair, and ends at a null."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def class_name(value: Any) -> str:
    """Return the name of an object's class, whatever its metaclass does."""
    return first_line(str(type.__getattribute__(type(value), "__qualname__")))


def device_name(device: Any) -> str:
    """Return a short name of a `jax.Device`, which it has after `clear_backends` as well; a name as it is.

    A plugin that is built on another platform may give its devices the `str` of that one.
    """
    return device if isinstance(device, str) else f"{device.platform}:{device.id}"


def attribute(value: Any, name: str) -> Any:
    """Return an attribute that an object or its class defines; None if it does not exist or reading it raises."""
    if type(value) is types.FunctionType:
        # It has no `__getattr__`, and the look below takes microseconds.
        return getattr(value, name, None)
    try:
        # Raises if only `__getattr__` would make the attribute up.
        inspect.getattr_static(value, name)
        return getattr(value, name)
    except Exception:
        return None


def never_runs(function: Callable[..., Any]) -> str | None:
    """Describe a generator or coroutine function, whose call runs nothing; None for any other callable."""
    inner: Any = function
    for _ in range(MOST_WRAPPERS):
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif isinstance(inner, types.MethodType):
            inner = inner.__func__
        else:
            break
    if not isinstance(inner, types.FunctionType):
        # Not `callable`, which does not return the function.
        inner = getattr(type(inner), "__call__", None)  # noqa: B004
    flags = inner.__code__.co_flags if isinstance(inner, types.FunctionType) else 0
    return next((what for flag, what in _RESUMABLE.items() if flags & flag), None) if flags & RUNS_LATER else None


def check_callable(function: Any, name: str, argument: str) -> None:
    """Raise `TypeError` if `function` is not callable, or if a call of it would run nothing."""
    if not callable(function):
        raise TypeError(f"{name}: {argument} must be callable, got {shown(function)}. The function comes first.")
    what = never_runs(function)
    if what is not None:
        raise TypeError(
            f"{name}: {argument} must be a function that does its work when it is called, but "
            f"{describe(function)} is {what}: a call makes an object and runs nothing. Pass a function that runs it to "
            "its end, such as lambda x: asyncio.run(coroutine(x)) or lambda x: list(generator(x))."
        )


def _innermost(function: Any) -> Any:
    """Return the function inside all wrappers; `function` itself if the wrappers do not end."""
    inner = function
    seen: set[int] = set()
    while len(seen) < MOST_WRAPPERS:
        if id(inner) in seen:
            return function
        seen.add(id(inner))
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif isinstance(inner, types.MethodType):
            inner = inner.__func__
        else:
            wrapped = attribute(inner, "__wrapped__")
            if wrapped is None:
                return inner
            inner = wrapped
    return function


def _seen(text: str) -> str:
    if text.isprintable():
        return text
    return "".join([repr(each)[1:-1] if unicodedata.category(each) in _UNSEEN else each for each in text])


def _text(value: Any, name: str) -> str | None:
    found = attribute(value, name)
    return found if isinstance(found, str) else None
