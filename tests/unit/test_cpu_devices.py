"""A program can be lowered for CPU in a process that has no CPU devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hostcb as hcb
from hostcb import _compat
from hostcb._lowering import rule


@pytest.mark.contract("H4")
def test_a_program_for_cpu_is_lowered_where_jax_has_no_cpu_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    local_devices, asked = jax.local_devices, []

    def without_cpu(*arguments: Any, backend: Any = None, **options: Any) -> Any:
        if backend == "cpu":
            asked.append(backend)
            raise RuntimeError("Unknown backend cpu")
        return local_devices(*arguments, backend=backend, **options)

    monkeypatch.setattr(jax, "local_devices", without_cpu)
    monkeypatch.setattr(_compat, "client_of", lambda _: None)
    monkeypatch.setattr(rule, "_tables", {})
    program = jax.jit(lambda x: hcb.call(lambda value: value, x, result_shape=x))
    text = program.trace(np.float32(1)).lower(lowering_platforms=("cpu",)).as_text()
    assert "custom_call" in text and asked
