"""What `ci/gpu.sh` checks on a GPU, with the stand-in for the driver."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from unittest import mock

import jax

import hostcb as hcb
from support import stand_in_for_cuda as stand_in
from support.stand_in_for_cuda import Driver


def script_for_gpus(driver: Driver) -> None:
    """What `ci/gpu.sh` checks on a GPU."""
    spec = importlib.util.spec_from_file_location("gpu_taps", stand_in.ROOT / "ci" / "gpu_taps.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    devices = jax.devices()
    with mock.patch.object(hcb, "barrier_wait", driver.barrier), contextlib.redirect_stdout(io.StringIO()) as printed:
        for check in (script.values, script.order, script.room):
            check(devices[0])
        script.devices_apart(devices)
        script.STEPS, script.ROUNDS = 20, 1
        script.measure(devices[0])
    lines = printed.getvalue().splitlines()
    assert [line.startswith("ok: ") for line in lines] == [True] * 5 + [False] * 8, lines
