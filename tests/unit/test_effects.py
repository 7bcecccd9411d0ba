"""X4: an ordered debug callback has the effect of the order alone, which is what JAX's own has."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import hostcb as hcb
from hostcb._spec import effects


@pytest.mark.contract("X4")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_debug_callback_has_one_effect(ordered: bool) -> None:
    """A JAX whose loops hostcb does not know refuses the effect without an order in a condition."""

    def program(x: Any) -> None:
        hcb.debug.callback(print, x, ordered=ordered)

    wanted = effects.HostCallbackEffect if ordered else effects.VisibleEffect
    assert [type(each) for each in jax.make_jaxpr(program)(1.0).effects] == [wanted]
