"""What cases and the code around them ask of errors and of objects."""

from __future__ import annotations

import gc
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...implementations import Implementation
from ...spec.jax_versions import JaxRuntimeError

LATEST_SECONDS = 2.0
"""An object that is still alive after this time counts as kept."""


def error_of(run: Callable[..., Any], *operands: Any) -> Exception | None:
    """What `run` raises; its result is waited for."""
    try:
        np.asarray(run(*operands))
    except Exception as error:
        return error
    return None


def still_alive(references: Mapping[str, weakref.ref[Any]], before: Callable[[], Any] = lambda: None) -> list[str]:
    """The names of the objects that are alive although nobody has them; each look comes after `before`.

    Results are there a moment before a thread of the runtime lets their executable go, and this the functions.
    """
    end = time.monotonic() + LATEST_SECONDS
    while True:
        before()
        gc.collect()
        alive = [name for name, reference in references.items() if reference() is not None]
        if not alive or time.monotonic() > end:
            return alive
        time.sleep(0.01)


_SUITE = Path(__file__).parents[2]
_IMPLEMENTATIONS = (_SUITE / "implementations", _SUITE / "mutants")


def is_of_the_program(error: Exception, implementation: Implementation) -> bool:
    """Whether an exception comes from the implementation, and not from an error in the suite."""
    if isinstance(error, JaxRuntimeError | implementation.callback_exception):
        return True
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if any(raised_in.is_relative_to(folder) for folder in _IMPLEMENTATIONS):
        return True
    return not raised_in.is_relative_to(_SUITE)
