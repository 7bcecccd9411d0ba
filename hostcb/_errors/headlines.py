"""The first line of an error of a callback that ran: the kind, the user's function, the device, and the reason (H32).

A failure that hostcb makes itself, such as a result that does not match, carries its own words for the line.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._spec.naming import class_name, device_name, first_line

# The attribute of an exception that says what the user's function did in place of raising it.
_DID = "_hostcb_did"


def headline(kind: str, name: str, device: Any, failure: BaseException | None) -> str:
    """Return a line such as `io_callback: save (train.py:12), on cpu:0, raised OSError: disk full`.

    Args:
        kind: the public name of the function that the user called.
        name: the user's function.
        device: the device that called, or None if it is not known.
        failure: the exception; None if another process has it.
    """
    place = "" if device is None else f", on {device_name(device)},"
    return f"{kind}: {name}{place} {what_it_did(failure)}"


def what_it_did(failure: BaseException | None) -> str:
    """Return what a failed function did, in one line."""
    if failure is None:
        return "failed in another process"
    try:
        did = vars(failure).get(_DID) if isinstance(failure, (TypeError, ValueError)) else None
        return first_line(str(did)) if did is not None else f"raised {_named(failure)}"
    except Exception:
        # The user's class may let any access to its attributes raise, and its text be of any class.
        return f"raised {class_name(failure)}"


def say(failure: BaseException, did: str) -> None:
    """Let the headline of `failure` say that the function did this, and not that it raised."""
    setattr(failure, _DID, did)


def abstract(value: Any) -> str:
    """Return the type of one leaf of a result: `float32[3]` for an array, or else the name of its class."""
    try:
        shape, dtype = tuple(value.shape), value.dtype
        name = dtype.name if isinstance(dtype, np.dtype) else str(dtype)
    except Exception:
        # The leaf may be any object, and reading its attributes may raise any exception.
        return type(value).__qualname__
    return f"{name.removeprefix('torch.')}[{','.join(map(str, shape))}]"


def _named(failure: BaseException) -> str:
    try:
        text = str(failure).strip()
    except (Exception, SystemExit):
        # Nor does Python's `traceback` let the text of an exception end the process.
        text = ""
    name = class_name(failure)
    return first_line(f"{name}: {text}") if text else name
