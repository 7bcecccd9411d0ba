"""Host functions: one that records its runs, one that waits, one that raises; and what cases ask of errors."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...implementations import Implementation
from ...implementations.host_functions import Sited
from ...oracle.history import Recorder
from ...spec.jax_versions import JaxRuntimeError

PLANTED = "planted failure"

RELEASED_AFTER = 60.0
"""A held callback goes on after so many seconds even if its case never releases it."""


class Host(Sited):
    """A host function that records its runs. It returns its operand, `returns` in turn, or what `answer` makes."""

    def __init__(
        self, site: str, recorder: Recorder, answer: Callable[[Any], Any] | None = None, returns: Sequence[Any] = ()
    ) -> None:
        self.site, self.recorder, self.answer, self.returns = site, recorder, answer, returns
        self.transforms: list[Any] = []
        self.devices: list[Any] = []
        self.count = 0

    def __call__(self, operand: Any, transforms: Any = (), device: Any = None) -> Any:
        self.count += 1
        self.transforms.append(transforms)
        self.devices.append(device)
        with self.recorder.callback(self.site, operand, (), device):
            if self.returns:
                return self.returns[(self.count - 1) % len(self.returns)]
            return jax.tree.map(np.array, operand) if self.answer is None else self.answer(operand)

    def forget(self) -> None:
        self.count = 0
        self.transforms.clear()
        self.devices.clear()


class Held:
    """A host function that waits until it is released, and then answers."""

    def __init__(self, answer: Callable[[Any], Any] = np.asarray) -> None:
        self.entered, self.release, self.answer = threading.Event(), threading.Event(), answer

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        self.entered.set()
        self.release.wait(RELEASED_AFTER)
        return self.answer(operand)


def fail(*_: Any) -> Any:
    raise ValueError(PLANTED)


def add_one(operand: Any) -> Any:
    """A host function of which `Case.expected` is the result."""
    return np.asarray(operand) + np.float32(1)


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
