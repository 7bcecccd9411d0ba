"""Callbacks that go wrong in the second of several processes alone."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from .host_functions import around
from .multiplicity import dropped, duplicated
from .mutant import Plant, mutant
from .order import neighbours_swapped

TAPS = "id_tap/shard_map/cpu-2x2 debug_callback/pmap/cpu-2x2 id_tap/jit/cpu-2x2"
WORDS = "in process 1"


def in_second_process(plant: Plant) -> Plant:
    """A library that works in the first process, and is broken in the second."""
    return functools.wraps(plant)(lambda library: plant(library) if jax.process_index() == 1 else {})


for _name, _fault, _cells, _symptom, _plant in (
    ("lost", "loses some callbacks", TAPS, "lost at callback", dropped),
    ("doubled", "runs some callbacks twice", TAPS, "duplicate at callback", duplicated),
    ("swapped", "reverses two callbacks", "id_tap/jit/cpu-2x2", "order at callback", neighbours_swapped),
):
    _named = f"{_name}_in_second_process"
    mutant(_cells, _symptom, words=WORDS, name=_named, fault=f"The second process {_fault}.")(in_second_process(_plant))


@mutant(
    "id_tap_device/shard_map/cpu-2x2 call_device/pmap/cpu-2x2 id_tap_device/jit/cpu-2x2",
    "wrong device at callback",
    words=WORDS,
)
@in_second_process
@around("id_tap", "call")
def device_of_first_process_received(function: Any, *arguments: Any, device: Any = None) -> Any:
    """The callbacks of the second process receive the devices of the first one."""
    # The device of the same place in the first process, as if each process numbered its own.
    first = {} if device is None else {"device": jax.devices()[jax.local_devices().index(device)]}
    return function(*arguments, **first)


@mutant("call/pmap/cpu-2x2 call/jit/cpu-2x2", "result at result", words=WORDS)
@in_second_process
@around("call")
def wrong_result_in_second_process(function: Any, *arguments: Any, **options: Any) -> Any:
    """The last call of a program has a wrong result in the second process."""
    result = function(*arguments, **options)
    # No other callback has the result of this one as its operand.
    return result + np.float32(1) if getattr(function, "site", "last") == "last" else result
