"""Trees of any types and shapes go to the host and come back, bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import helpers, sessions, strategies
from support.helpers import Record

import hostcb as hcb

# Each example is a program of its own, to be compiled.
FEW = settings(max_examples=sessions.rounds(10, 100))
keys = st.integers(0, 2**31).map(jax.random.key)


def is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def words(leaf: Any) -> np.ndarray:
    """A leaf as callbacks see it."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


@pytest.mark.contract("H1", "H3")
@pytest.mark.parametrize("layout", [helpers.EAGER, helpers.JIT, helpers.MESH], ids=helpers.named)
@FEW
@given(tree=strategies.trees(st.one_of(strategies.arrays(), keys)))
def test_taps_and_calls_see_any_tree_and_return_it(layout: helpers.Layout, tree: Any) -> None:
    record = Record()
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    expected = jax.tree.map(words, tree)

    def program(x: Any) -> Any:
        x = jax.tree.map(lambda leaf, given: jax.random.wrap_key_data(leaf) if is_key(given) else leaf, x, tree)
        x = hcb.id_tap(record.tap, x)
        out = hcb.call(record.caller(), x, result_shape=shapes)
        return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, out)

    (out,) = layout.run(program, [expected])
    hcb.barrier_wait()
    for seen in record.args:
        helpers.equal(seen, expected, "what a callback saw")
    assert len(record.args) == 2
    helpers.equal(out, expected, "what the call returned")
