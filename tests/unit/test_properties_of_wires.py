"""Whatever a value is, it comes out of its wire as it went in."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies
from support.helpers import equal

from hostcb._lowering.wire import Bits, WidenedBits, decoder, encoder, wire_of
from hostcb._spec.shapes import size_of

pytestmark = pytest.mark.contract("H3")


def aval_of(array: np.ndarray) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(array.shape, array.dtype)


@given(st.lists(strategies.arrays(), max_size=3))
def test_what_is_encoded_is_of_the_carried_type_and_decodes_to_itself(values: list[np.ndarray]) -> None:
    wires = [wire_of(aval_of(value)) for value in values]
    crossed = encoder(wires)(values)
    for wire, array in zip(wires, crossed, strict=True):
        assert (array.shape, array.dtype) == (wire.carried.shape, wire.carried.dtype)
        assert jax.dtypes.itemsize_bits(array.dtype) >= 8, "the runtime's buffers have whole bytes"
    for value, decoded in zip(values, decoder(wires)(crossed), strict=True):
        equal(decoded, value, "what was decoded")


@given(strategies.arrays())
def test_floats_cross_as_words_where_arithmetic_is_done_on_them(value: np.ndarray) -> None:
    wire = wire_of(aval_of(value), as_bits=True)
    crossed = wire.encode(value)
    assert crossed.dtype.kind in "iub", f"{crossed.dtype} would lose the sign of zero"
    assert (crossed.shape, crossed.dtype) == (wire.carried.shape, wire.carried.dtype)
    if type(wire) is Bits:
        assert crossed.tobytes() == np.ascontiguousarray(value).tobytes()
        assert crossed.nbytes == size_of(wire.aval)
    if type(wire) is WidenedBits:
        equal(crossed.view(np.float16).astype(value.dtype), value, "what the words are")
