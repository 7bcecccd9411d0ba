"""H18: a tap that repeats another one is bound at once, without the checks that the first one has passed."""

from __future__ import annotations

from typing import Any

import jax
import pytest

import hostcb as hcb
from hostcb._api import host_callback
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


@pytest.mark.contract("H18")
def test_a_repeated_tap_is_bound_as_the_first_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    plain = host_callback.bind

    def bind(*args: Any, **kwargs: Any) -> Any:
        bound.append("first")
        return plain(*args, **kwargs)

    def again(arg: Any, transforms: Any) -> None: ...

    monkeypatch.setattr(host_callback, "bind", bind)
    traced = jax.make_jaxpr(lambda x: hcb.id_tap(again, hcb.id_tap(again, x)))(1.0)
    one, other = (dict(equation.params) for equation in traced.eqns)
    assert one == other
    assert bound == ["first"], "the second tap should take the short way"
