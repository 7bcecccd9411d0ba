"""Modules of hostcb where a system, or a JAX, lacks what they use (H13, H17)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import jax
import pytest

import hostcb as hcb
from hostcb._compat import waiting
from hostcb._runtime import fork
from hostcb._runtime.executions.executions import tracker


@pytest.mark.contract("H17")
def test_where_processes_cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    found: Any = importlib.util.spec_from_file_location("hostcb._runtime.fork_where_none_can", fork.__file__)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    assert callable(module._forget)


@pytest.mark.contract("H13")
def test_where_jax_does_not_report_executions_a_barrier_waits_for_those_of_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[bool] = []

    class Token:
        def block_until_ready(self) -> None:
            waited.append(True)

    token: Any = Token()
    monkeypatch.setattr(tracker, "informed", False)
    waiting.let_effects_barrier_wait({jax.devices()[0]: token})
    hcb.barrier_wait()
    assert waited
