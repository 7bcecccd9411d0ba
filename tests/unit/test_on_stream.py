"""H26: the handler of taps on CUDA, with stand-ins for the library in C and for the device."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from hostcb._lowering import on_stream
from hostcb._runtime.queue import rings, sites
from hostcb._runtime.queue.sites import Site

pytestmark = pytest.mark.contract("H26")

OPERANDS = [jax.core.ShapedArray((2,), np.float32), jax.core.ShapedArray((3,), np.int32)]
VALUES = [np.float32([1, 2]), np.int32([3, 4, 5])]


def fetch(count: int, sizes: Any, places: Any) -> None:
    """As `hostcb_cuda_fetch`: copies each operand from the device to its place."""
    for value, size, place in zip(VALUES, sizes, places, strict=True):
        assert count == len(VALUES) and size == value.nbytes
        ctypes.memmove(place, value.ctypes.data, size)


class With:
    """An object with other attributes of these names."""

    def __init__(self, plain: Any, **others: Any) -> None:
        self._plain = plain
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


@pytest.mark.parametrize("unbound", [True, False])
def test_the_first_value_binds_the_site_and_all_come_in_their_order(
    unbound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[Site] = []
    tapped: list[Any] = []
    # Each in its module alone, since handlers and threads of earlier tests may use the library meanwhile.
    monkeypatch.setattr(sites, "library", With(sites.library, free=SimpleNamespace(hostcb_cuda_fetch=fetch)))
    monkeypatch.setattr(on_stream, "library", SimpleNamespace(held=SimpleNamespace(hostcb_is_unbound=lambda: unbound)))
    monkeypatch.setattr(on_stream.cuda, "device", lambda: "device")
    monkeypatch.setattr(on_stream, "queues", {"device": SimpleNamespace(bind=bound.append)})
    program = SimpleNamespace(through_python=ctypes.c_int32(0))
    host = SimpleNamespace(program=program, tap=lambda device, arrays: tapped.append((device, *arrays)))
    crossing: Any = SimpleNamespace(host=host, decode=lambda arrays: arrays, operand_avals=OPERANDS)
    on_stream._handler(crossing)("buffers that are not read")
    ((device, *arrays),) = tapped
    assert device == "device" and all(map(np.array_equal, arrays, VALUES))
    # A ring of CUDA has memory that the device can write to.
    assert [site.pinned for site in bound] == [True] * unbound


def test_who_waits_for_values_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that brings them needs the interpreter lock, or the processor."""
    counters = SimpleNamespace(reserved=2, tail=0)

    def sleep(seconds: float) -> None:
        counters.tail += 1

    monkeypatch.setattr(rings, "PATIENCE", 0.5)
    monkeypatch.setattr(rings.time, "sleep", sleep)
    rings.Ring.settle(SimpleNamespace(counters=counters))  # type: ignore[arg-type]
    assert counters.tail == 2


@pytest.mark.contract("H24")
def test_a_ring_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    held = With(rings.library.held, hostcb_ring=lambda capacity, data: None)
    monkeypatch.setattr(rings, "library", With(rings.library, held=held))
    with pytest.raises(MemoryError, match="device"):
        rings.Ring(1, 1, pinned=False)


@pytest.mark.contract("H24")
def test_the_error_of_cuda_is_shown_where_it_has_no_memory_for_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    free = With(rings.library.free, hostcb_cuda_ring=lambda *arguments: b"cuMemHostAlloc: out of memory")
    monkeypatch.setattr(rings, "library", With(rings.library, free=free))
    with pytest.raises(RuntimeError, match="cuMemHostAlloc: out of memory"):
        rings.Ring(1, 1, pinned=True)
