"""H26: what the library in C receives before a program for CUDA uses it, with a stand-in for all that it calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import pytest

from hostcb import _compat
from hostcb._native import cuda as native
from hostcb._native.cuda import PLATFORM, TARGET, Cuda

pytestmark = pytest.mark.contract("H26")

HANDLER = 7


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """The functions of the library."""
    held = mock.Mock()
    # For this module alone: handlers of earlier tests may end meanwhile, and ask the library about their values.
    monkeypatch.setattr(native, "library", SimpleNamespace(held=held, problem=None))
    return held


def told(monkeypatch: pytest.MonkeyPatch, held: mock.Mock) -> list[tuple[Any, ...]]:
    """What the library and the runtime receive, in this order, once the environment asks for the transport."""
    steps: list[tuple[Any, ...]] = []
    held.hostcb_cuda_set_python_handler = lambda handler: steps.append(("handler", handler))
    monkeypatch.setattr(_compat, "backends_exist", lambda: True)
    monkeypatch.setattr(_compat, "cuda_python_handler", lambda: HANDLER)
    monkeypatch.setattr(jax.ffi, "pycapsule", lambda function: function)
    monkeypatch.setattr(jax.ffi, "register_ffi_type", lambda *_, platform: steps.append(("type", platform)))
    monkeypatch.setattr(
        jax.ffi,
        "register_ffi_target",
        lambda name, stages, platform: steps.append(("target", name, stages, platform)),
    )
    cuda = Cuda()
    cuda.problem = None
    assert cuda.is_ready(), cuda.problem
    return steps


def test_the_library_knows_the_handler_in_python_before_the_runtime_knows_the_library(
    monkeypatch: pytest.MonkeyPatch, held: mock.Mock
) -> None:
    stages = {"instantiate": held.hostcb_cuda_instantiate, "execute": held.hostcb_cuda_tap}
    assert told(monkeypatch, held) == [
        ("handler", HANDLER),
        ("type", PLATFORM),
        ("target", TARGET, stages, PLATFORM),
    ]


def test_nothing_is_registered_before_jax_has_its_devices(monkeypatch: pytest.MonkeyPatch, held: mock.Mock) -> None:
    """A refusal would keep them from starting."""
    monkeypatch.setattr(_compat, "backends_exist", lambda: False)
    cuda = Cuda()
    cuda.problem = None
    assert not cuda.is_ready() and cuda.problem is None
    assert not held.mock_calls


def test_a_tap_is_of_the_device_whose_number_the_runtime_tells(
    monkeypatch: pytest.MonkeyPatch, held: mock.Mock
) -> None:
    devices = [SimpleNamespace(local_hardware_id=number) for number in (0, 2, 1)]
    monkeypatch.setattr(jax, "local_devices", lambda backend: devices if backend == "cuda" else [])
    for device in devices:
        held.hostcb_cuda_ordinal.return_value = device.local_hardware_id
        assert Cuda().device() is device


@pytest.mark.parametrize("numbers", [(), (0, 1), (2, 2)], ids=["none", "others", "two"])
def test_a_number_that_is_not_that_of_one_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, held: mock.Mock, numbers: tuple[int, ...]
) -> None:
    devices = [SimpleNamespace(local_hardware_id=number) for number in numbers]
    monkeypatch.setattr(jax, "local_devices", lambda backend: devices)
    held.hostcb_cuda_ordinal.return_value = 2
    with pytest.raises(RuntimeError, match="device 2"):
        Cuda().device()
