"""What the tests of derivatives and of batching share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hostcb as hcb
from support.helpers import Record


def power3(record: Record) -> Callable[[Any], Any]:
    """The documentation's running example: x cubed, and a tap of x and its square."""

    def function(x):
        y = x * x
        x, y = hcb.id_tap(record.tap, (x, y))
        return y * x

    return function


def power3_unused(record: Record) -> Callable[[Any], Any]:
    """As in the documentation, where nobody uses what the tap returns."""

    def function(x):
        y = x * x
        hcb.id_tap(record.tap, (x, y))
        return y * x

    return function


EXAMPLES = pytest.mark.parametrize("example", [power3, power3_unused])


def seen(record: Record, what: str, *expected: Any) -> None:
    __tracebackhide__ = True
    hcb.barrier_wait()
    assert len(record.all) == len(expected), f"{what}: callbacks {record.values}, but should be {list(expected)}"
    for got, want in zip(record.values, expected, strict=True):
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, err_msg=what), got, want)
