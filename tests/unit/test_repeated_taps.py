"""H18: a tap that repeats another one is bound at once, without the checks that the first one has passed."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import hostcb as hcb
from hostcb._spec.callback import known_tap
from hostcb._spec.kinds import PRINTING_TAP, TAP


def tap(arg: Any, transforms: Any) -> None:
    pass


@pytest.mark.contract("H18")
def test_the_callback_of_a_tap_is_found_while_it_lives() -> None:
    assert known_tap(TAP, tap) is None
    traced = jax.make_jaxpr(lambda x: hcb.id_tap(tap, x))(1.0)
    (equation,) = traced.eqns
    assert known_tap(TAP, tap) is equation.params["callback"]
    assert known_tap(PRINTING_TAP, tap) is None
