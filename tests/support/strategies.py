"""Values, shapes and trees for tests with hypothesis."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

WHOLE_BYTES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64", "bfloat16"),
    *("float8_e4m3fn", "float8_e5m2"),
)
PARTS_OF_BYTES = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}
"""How many bits there are to a value."""

KEYS = st.sampled_from("abc")


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtype_names = st.sampled_from([*WHOLE_BYTES, *PARTS_OF_BYTES])


@st.composite
def arrays(draw: st.DrawFn, names: st.SearchStrategy[str] = dtype_names) -> np.ndarray:
    """Any bits that a type has values for."""
    name, shape = draw(names), draw(shapes)
    dtype, count = dtype_of(name), int(np.prod(shape))
    if name == "bool":
        flat = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    elif name in PARTS_OF_BYTES:
        bits = st.integers(0, 2 ** PARTS_OF_BYTES[name] - 1)
        words = np.array(draw(st.lists(bits, min_size=count, max_size=count)), np.uint8)
        flat = words.view(dtype) if dtype.kind not in "iuV" or "float" in name else signed(words, name).astype(dtype)
    else:
        size = count * dtype.itemsize
        flat = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype)
    return flat.reshape(shape)


def signed(words: np.ndarray, name: str) -> np.ndarray:
    """Words of a few bits as the integers of that type."""
    if name.startswith("uint"):
        return words
    half = 2 ** (PARTS_OF_BYTES[name] - 1)
    return np.where(words < half, words.astype(np.int8), words.astype(np.int8) - 2 * half).astype(np.int8)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested tuples, lists and dicts; perhaps a leaf alone."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(KEYS, inner, max_size=3),
        ),
        max_leaves=4,
    )
