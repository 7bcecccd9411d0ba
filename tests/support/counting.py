"""What the tests of `io_callback` share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hostcb as hcb
from support.helpers import Record

X = np.arange(8, dtype=np.float32)
SCALAR = jax.ShapeDtypeStruct((), np.float32)
INT = jax.ShapeDtypeStruct((), np.int32)
ORDERED = pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])


def values(record: Record) -> list[Any]:
    """What callbacks saw until now."""
    hcb.barrier_wait()
    return record.values


class Counter:
    """A function with a state: it returns 0, 1, and so on."""

    def __init__(self) -> None:
        self.record = Record()

    def __call__(self, *args: Any) -> Any:
        self.record.add(args[0] if args else None)
        return np.int32(len(self.record.all) - 1)

    def silent(self, *args: Any) -> None:
        self(*args)
