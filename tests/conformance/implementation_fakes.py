"""Implementations without any machinery, for tests of the suite itself.

They run callbacks in plain Python while an `eager` program is traced, and do to it what the test wants done.
"""

from __future__ import annotations

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


class InPlace:
    """Runs every callback at once, in the tracing thread."""

    name = "in_place"
    callback_exception: type[Exception] = RuntimeError
    tap = call = NotImplemented

    def __init__(self, disturb: Disturbance = lambda callback, site: True) -> None:
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

    def barrier(self) -> None: ...


_seen: set[str] = set()


def _fail_after_another(callback: Callback, site: str) -> bool:
    _seen.add(callback.name)
    return not (callback.name == "call" and len(_seen) > 1)


GOOD = InPlace()
LOSES_A_CALLBACK = InPlace(lambda callback, site: site != "unused")
FAILS_AFTER_ANOTHER = InPlace(_fail_after_another)
