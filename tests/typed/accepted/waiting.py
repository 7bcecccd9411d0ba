"""Barriers, their errors, figures, traces and `install`."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import assert_type

import jax.numpy as jnp

import hostcb as hcb

before = hcb.stats()
x = hcb.id_tap(lambda value, transforms: None, jnp.ones(2))
with hcb.installed(), hcb.trace(Path(tempfile.mkdtemp(), "trace.json"), values=True):
    hcb.id_print(x, output_stream=io.StringIO())
try:
    hcb.barrier_wait("end", timeout=60)
except hcb.BarrierTimeoutError as error:
    assert_type([each.count for each in error.outstanding], list[int])
except hcb.CallbackException as error:
    assert_type([each.exception for each in error.failures], list[BaseException])
figures = hcb.stats() - before
assert_type(figures["cpu:0"].taps, int)
assert_type({name: each.bytes for name, each in figures.devices.items()}, dict[str, int])
assert_type(hcb.doctor().complete, bool)
