"""H13: a barrier waits for devices also after an interrupt in the middle of a trace of JAX's."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from hostcb._compat import waiting

pytestmark = pytest.mark.contract("H13")


@pytest.mark.parametrize("count", [1, 2])
def test_a_trace_that_never_ended_does_not_end_the_waiting(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[Any] = []

    def logical_not(token: Any) -> Any:
        # As jaxlib's cache does for a function whose trace an interrupt has ended.
        raise RecursionError("Recursively calling <weakref to 'function' (logical_not)>")

    monkeypatch.setattr(waiting.jnp, "logical_not", logical_not)
    monkeypatch.setattr(waiting, "settle", settled.append)
    devices = jax.devices()[:count]
    waiting.settle_devices(devices)
    (last,) = settled
    assert last.devices() == set(devices)
