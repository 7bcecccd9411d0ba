"""A program tries whether this JAX has a bug of tokens; what surrounds the trial does not change the answer."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import pytest
from support.helpers import mesh_of

from hostcb._compat import token_bugs


@pytest.mark.contract("H4")
@pytest.mark.parametrize("in_mesh", [False, True], ids=["alone", "in a mesh"])
def test_a_jax_that_forgets_no_token_is_not_taken_for_one_that_does(
    in_mesh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a JAX without the bug: a program that has no token to forget. JAX refuses its device inside of a mesh."""

    def without_token(x: Any) -> Any:
        return x

    monkeypatch.setattr(token_bugs, "_ordered_identity", without_token)
    surroundings = jax.set_mesh(mesh_of(jax.devices())) if in_mesh else contextlib.nullcontext()
    with surroundings:
        assert token_bugs._tokens_are_forgotten.__wrapped__() is False
