"""Implementations without any machinery, for tests of the suite itself.

They run callbacks in plain Python while an `eager` program is traced, and do to it what the test
wants done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from conformance.model.transforms import Probe
from conformance.oracle.history import Recorder
from conformance.spec.callbacks import RETURNED_OFFSET, Callback
from conformance.spec.data import PLAIN, DataKind

Disturbance: TypeAlias = Callable[[Callback, str], bool]
"""Does to a callback what the test wants done; says whether the callback runs at all."""


def _leave_alone(callback: Callback, site: str) -> bool:
    return True


class InPlace:
    """Runs every callback at once, in the tracing thread."""

    name = "in_place"
    callback_exception: type[Exception] = RuntimeError

    def __init__(self, disturb: Disturbance = _leave_alone) -> None:
        self._disturb = disturb

    def probe(
        self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device], data: DataKind = PLAIN
    ) -> Probe:
        def probe(site: str, value: Any) -> Any:
            if self._disturb(callback, site):
                with recorder.callback(site, np.asarray(value)):
                    pass
            return value + np.float32(RETURNED_OFFSET) if callback.returns_new_value else value

        return probe

    def tap(self, function: Any, operand: Any) -> Any:
        raise NotImplementedError

    def call(self, function: Any, operand: Any, result_shape: Any) -> Any:
        raise NotImplementedError

    def barrier(self) -> None: ...


def _die(callback: Callback, site: str) -> bool:
    if callback.name == "call" and site == "unused":
        os.abort()
    return True


def _block(callback: Callback, site: str) -> bool:
    if callback.name == "call" and site == "unused":
        time.sleep(600)
    return True


def _lose(callback: Callback, site: str) -> bool:
    return site != "unused"


_seen: set[str] = set()


def _fail_after_another(callback: Callback, site: str) -> bool:
    _seen.add(callback.name)
    return not (callback.name == "call" and len(_seen) > 1)


GOOD = InPlace()
DIES_IN_CALL = InPlace(_die)
BLOCKS_IN_CALL = InPlace(_block)
LOSES_A_CALLBACK = InPlace(_lose)
FAILS_AFTER_ANOTHER = InPlace(_fail_after_another)
