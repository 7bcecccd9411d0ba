"""Implementations for tests of the mutants' machinery: one that is not broken, and one that blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax

import hostcb
from conformance.implementations.hostcb import Hostcb
from conformance.model.transforms import Probe
from conformance.oracle.history import Recorder
from conformance.spec.callbacks import Callback
from conformance.spec.data import PLAIN, DataKind


class _BlocksInCall(Hostcb):
    def probe(
        self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device], data: DataKind = PLAIN
    ) -> Probe:
        if callback.name == "call":
            time.sleep(600)
        return super().probe(callback, recorder, devices, data)


HARMLESS = Hostcb(hostcb)
BLOCKS_IN_CALL = _BlocksInCall(hostcb)
