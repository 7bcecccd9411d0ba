"""The inputs of a program on each device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .description import ON_EACH_DEVICE, WIDTH, Program


def inputs_of(program: Program, device: int) -> list[Any]:
    """The number of the device, and the inputs; each device has others."""
    made: list[Any] = [np.asarray(device, np.int32)]
    for one in program.inputs:
        value = one.value + device
        if one.name[0] == "v":
            made.append(np.arange(value, value + WIDTH, dtype=np.float32))
        else:
            made.append(np.asarray(value, np.float32 if one.name[0] == "f" else np.int32))
    return made


def devices_apart(program: Program) -> int:
    """The number of devices that run the program each for itself."""
    return program.devices if program.layout in ON_EACH_DEVICE else 1
