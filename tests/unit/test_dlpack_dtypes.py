"""What `dlpack_callback` lends of every type (D1), those of `ml_dtypes` too, which NumPy's DLPack does not know."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support.helpers import STAGES
from test_stale_buffers import DEPTH, SCALAR, at_all_depths, check_that_nobody_is_misled

import hostcb as hcb
from hostcb._dlpack.from_dlpack import view

SMALL = ["bfloat16", *(name for name in dir(ml_dtypes) if name.startswith("float8"))]
DTYPES = pytest.mark.parametrize("dtype", [*SMALL, "float16", "float32", "complex64", "bool", "int8", "uint32"])


def values(dtype: str, shape: tuple[int, ...] = (2, 3)) -> Any:
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(jnp.dtype(dtype))


def same(actual: Any, expected: Any) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape, actual.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def keep_in(kept: list[Any], how: str) -> Any:
    """A callback that keeps an array of what it is lent."""

    def keep(x: Any) -> Any:
        kept.append(np.asarray(x))
        return np.zeros((), np.float32)

    def keep_results(out: Any, x: Any) -> None:
        kept.append((np.asarray(out[0]), np.asarray(out[1]), np.asarray(x)))
        kept[-1][0][...] = 0
        kept[-1][1][...] = kept[-1][2]

    def give_back(x: Any) -> Any:
        kept.append(np.asarray(x))
        return np.float32(0), x

    def give_array_back(x: Any) -> Any:
        kept.append(np.asarray(x))
        return [np.float32(0), kept[-1]]

    return {"operand": keep, "in_place": keep_results, "lent": give_back, "array": give_array_back}[how]


@pytest.mark.contract("D1")
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float16", "bool"])
@pytest.mark.parametrize("how", ["operand", "in_place", "lent", "array"])
def test_arrays_of_every_type_may_be_kept(dtype: str, how: str) -> None:
    kept: list[Any] = []
    x = jnp.asarray(values(dtype, ()))
    shapes: Any = SCALAR if how == "operand" else (SCALAR, x)
    f = hcb.dlpack_callback(keep_in(kept, how), shapes, in_place=how == "in_place")
    program = jax.jit(lambda x: f(x))
    at_all_depths(lambda: jax.block_until_ready(program(x)))
    assert len(kept) == DEPTH**2
    check_that_nobody_is_misled()
    kept.clear()
    gc.collect()


@pytest.mark.contract("D1")
@DTYPES
@STAGES
@pytest.mark.parametrize("shape", [(), (2, 3), (1, 0)], ids=str)
def test_operands_are_read_only_arrays_of_their_own_type(dtype: str, stage: Any, shape: Any) -> None:
    x = values(dtype, shape)

    def check(lent: Any) -> Any:
        array = np.asarray(lent)
        assert array.dtype == lent.dtype == x.dtype
        assert not array.flags.writeable
        same(array, x)
        # What the buffer says of itself has not changed.
        same(np.asarray(lent), x)
        copy = np.array(lent)
        assert copy.flags.owndata and copy.flags.writeable
        same(np.asarray(lent, dtype=np.complex64), x.astype(np.complex64))
        return lent, np.float32(1)

    f = hcb.dlpack_callback(check, (x, SCALAR))
    same(stage(lambda x: f(x))(x)[0], x)


@pytest.mark.contract("D1")
@DTYPES
@STAGES
@pytest.mark.parametrize("alias", [None, {0: 0}], ids=["fresh", "alias"])
def test_results_are_written_through_arrays_of_their_own_type(dtype: str, stage: Any, alias: Any) -> None:
    x = values(dtype)

    def write(out: Any, given: Any) -> None:
        array = np.asarray(out)
        assert array.flags.writeable
        array[...] = np.asarray(given)
        array[0, 0] = array[1, 2]

    expected = x.copy()
    expected[0, 0] = expected[1, 2]
    f = hcb.dlpack_callback(write, x, in_place=True, input_output_aliases=alias)
    same(stage(lambda x: f(x))(x), expected)


class OnlyDLPack:
    """An array of a library that speaks DLPack and nothing else."""

    def __init__(self, array: Any):
        self._array = jnp.asarray(array)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.contract("D1")
@DTYPES
@STAGES
def test_results_of_libraries_that_speak_dlpack_alone(dtype: str, stage: Any) -> None:
    x = values(dtype)
    f = hcb.dlpack_callback(lambda given: OnlyDLPack(np.array(given)), x)
    same(stage(lambda x: f(x))(x), x)


def test_a_view_leaves_what_its_source_says_as_it_is() -> None:
    x = jnp.asarray(values("bfloat16"))
    same(view(x), x)
    same(jnp.from_dlpack(x), x)
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(x)
    same(view(x), x)


class OfOldLibraries:
    """An array of a library that knows no versions of DLPack: its capsules are plain ones."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()


@pytest.mark.contract("D1")
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float32"])
def test_capsules_without_a_version(dtype: str) -> None:
    array = jnp.asarray(values(dtype))
    assert "dltensor_versioned" not in repr(OfOldLibraries(array).__dlpack__(max_version=(1, 0)))
    same(view(OfOldLibraries(array)), values(dtype))
