"""Runs the interpreter for all devices of a program, in step at collectives."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .description import KINDS, Program
from .expected import Expected
from .inputs import devices_apart, inputs_of
from .interpreter import Interpreter
from .neutral import traced

PATIENCE = 20.0
"""Seconds after which a device that comes to no collective is an error of the drawing."""


class _Meeting:
    def __init__(self, devices: int) -> None:
        self.arrays: list[Any] = [None] * devices
        self.barrier = threading.Barrier(devices)

    def __call__(self, device: int, array: Any) -> list[Any]:
        self.arrays[device] = array
        self.barrier.wait(PATIENCE)
        arrays = list(self.arrays)
        # No device goes on to its next collective before all have read.
        self.barrier.wait(PATIENCE)
        return arrays


def expect(program: Program) -> list[Expected]:
    """What each device must do in one run of a program. `UnjudgedError` says why it is not known."""
    jaxpr, devices = traced(program, KINDS), devices_apart(program)
    meeting = _Meeting(devices)

    def of_device(device: int) -> Expected:
        try:
            return Interpreter(device, meeting).run(jaxpr, inputs_of(program, device))
        except BaseException:
            meeting.barrier.abort()
            raise

    # Overflow is refused where it matters; NumPy's warnings of invalid values would hide nothing but noise.
    with np.errstate(all="raise"), ThreadPoolExecutor(devices) as threads:
        futures = [threads.submit(of_device, device) for device in range(devices)]
    errors = [error for one in futures if (error := one.exception())]
    # The others only report that one did not come.
    for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error
    return [one.result() for one in futures]
