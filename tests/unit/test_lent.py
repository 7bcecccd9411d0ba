"""What `dlpack_callback` lends, and how it takes one array back (D1)."""

from __future__ import annotations

import sys
import types
from typing import Any

import jax
import numpy as np
import pytest

from hostcb._dlpack import lent
from hostcb._dlpack.lent import Lent, copied

pytestmark = pytest.mark.contract("D1")

CPU = 1


class Buffer:
    """Memory of the runtime, on a CPU device with this number."""

    def __init__(self, values: Any, number: int = 0):
        self.values = values
        self.number = number

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, self.number

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


def lending(buffer: Buffer) -> Lent:
    one = Lent()
    one._lent = buffer
    return one


def test_what_is_lent_tells_its_form() -> None:
    one = Lent()
    one._lent = np.zeros((2, 3), np.int8)
    assert (one.shape, one.dtype, one.ndim, one.size) == ((2, 3), np.dtype(np.int8), 2, 6)


def test_the_number_of_a_cpu_device_is_that_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job of several processes, also where CPU devices are not the default ones."""
    of_platform = {
        "cpu": [types.SimpleNamespace(id=6, local_hardware_id=0), types.SimpleNamespace(id=7, local_hardware_id=1)],
        None: [types.SimpleNamespace(id=7, local_hardware_id=3)],
    }
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: of_platform[backend])
    assert lending(Buffer(np.zeros(1), 7)).__dlpack_device__() == (CPU, 1)


def test_one_array_that_matches_is_copied_without_the_tree() -> None:
    out = np.zeros(3, np.float32)
    assert copied(lending(Buffer(out)), np.arange(3, dtype=np.float32))
    assert out.tolist() == [0, 1, 2]
    for other in (np.zeros(2, np.float32), np.zeros(3, np.int32), [0.0, 0.0, 0.0]):
        assert not copied(lending(Buffer(out)), other)
    assert out.tolist() == [0, 1, 2]


def test_streams_of_libraries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with lent.current(lent.Stream(77, 3)):
        pass
