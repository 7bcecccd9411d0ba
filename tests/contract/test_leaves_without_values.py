"""A `float0` leaf arrives in its place, as a `float0` array, in each kind of callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import STAGES
from support.pairwise import in_turns

import hostcb as hcb

X = jnp.float32(2)
SCALAR = jax.ShapeDtypeStruct((), np.float32)

WITHOUT_VALUE = np.zeros(2, jax.dtypes.float0)
OF_LEAVES: dict[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "tap": lambda host, leaves: hcb.id_tap(lambda given, _: host(*given), leaves, result=np.float32(1)),
    "call": lambda host, leaves: hcb.call(lambda given: host(*given), leaves, result_shape=SCALAR),
    "pure": lambda host, leaves: hcb.pure_callback(host, SCALAR, *leaves),
    "io": lambda host, leaves: hcb.io_callback(host, SCALAR, *leaves),
    "io ordered": lambda host, leaves: hcb.io_callback(host, SCALAR, *leaves, ordered=True),
    "debug": lambda host, leaves: hcb.debug.callback(host, *leaves),
    "debug ordered": lambda host, leaves: hcb.debug.callback(host, *leaves, ordered=True),
    "dlpack": lambda host, leaves: hcb.dlpack_callback(host, SCALAR)(*leaves),
    "buffer": lambda host, leaves: hcb.buffer_callback(
        lambda _, out, *given: np.copyto(np.asarray(out), host(*given)), SCALAR
    )(*leaves),
}


@pytest.mark.contract("H1", "H3", "X2", "X3", "X4", "B1", "D1")
@STAGES
@in_turns(("kind", "form"), OF_LEAVES, ["x0", "0x", "0x0", "x0x", "0"], times=2)
def test_a_leaf_without_a_value_arrives_in_its_place(kind: str, form: str, stage: Any) -> None:
    seen: list[str] = []

    def host(*given: Any) -> Any:
        seen.append("".join("0" if each.dtype == jax.dtypes.float0 else "x" for each in given))
        assert all(each.shape == (2,) or float(np.asarray(each)) == 2 for each in given)
        return np.float32(1)

    leaves = lambda x: tuple(x if leaf == "x" else WITHOUT_VALUE for leaf in form)
    jax.block_until_ready(stage(lambda x: OF_LEAVES[kind](host, leaves(x)))(X))
    hcb.barrier_wait()
    assert seen == [form]
