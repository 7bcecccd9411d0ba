"""The types in which values cross between device and host, where their own will not do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir


def _ir_type(aval: Any) -> Any:
    return mlir.ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(np.dtype(aval.dtype)))


def size_of(aval: Any) -> int:
    """The bytes of a NumPy array of this type."""
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Wire:
    """How one value crosses. `aval` is what it is to the program, `carried` what crosses."""

    aval: Any

    @property
    def carried(self) -> Any:
        return jax.core.ShapedArray(self.aval.shape, self.aval.dtype)

    def pack(self, value: Any) -> Any:
        """On the device: the program's value as it crosses."""
        return value

    def unpack(self, value: Any) -> Any:
        """On the device: what crossed as the program's value."""
        return value

    def encode(self, array: np.ndarray) -> np.ndarray:
        """On the host: the function's array as it crosses."""
        return array

    def decode(self, array: np.ndarray) -> np.ndarray:
        """On the host: what crossed as the function's array."""
        return array


class Widened(Wire):
    """Types of less than a byte: packed on the device, a byte each in NumPy."""

    @property
    def carried(self) -> Any:
        if jnp.issubdtype(self.aval.dtype, np.unsignedinteger):
            return jax.core.ShapedArray(self.aval.shape, np.uint8)
        if jnp.issubdtype(self.aval.dtype, np.signedinteger):
            return jax.core.ShapedArray(self.aval.shape, np.int8)
        return jax.core.ShapedArray(self.aval.shape, np.float16)

    def pack(self, value: Any) -> Any:
        return hlo.ConvertOp(_ir_type(self.carried), value).result

    def unpack(self, value: Any) -> Any:
        return hlo.ConvertOp(_ir_type(self.aval), value).result

    def encode(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self.carried.dtype)

    def decode(self, array: np.ndarray) -> np.ndarray:
        return array.astype(self.aval.dtype)


class Bits(Wire):
    """Floats as the words that they are made of.

    A result that is spread over a mesh is added to zeros, which loses the sign of zero, and what is denormal, where it
    is added as a float. Words come through. Only results go this way.
    """

    @property
    def carried(self) -> Any:
        dtype = np.dtype(self.aval.dtype)
        if dtype.kind == "c":
            return jax.core.ShapedArray((*self.aval.shape, 2), f"uint{dtype.itemsize * 4}")
        return jax.core.ShapedArray(self.aval.shape, f"uint{dtype.itemsize * 8}")

    def unpack(self, value: Any) -> Any:
        if np.dtype(self.aval.dtype).kind != "c":
            return hlo.BitcastConvertOp(_ir_type(self.aval), value).result
        half = np.dtype(f"float{np.dtype(self.aval.dtype).itemsize * 4}")
        pairs = hlo.BitcastConvertOp(_ir_type(jax.core.ShapedArray(self.carried.shape, half)), value).result
        return hlo.ComplexOp(*(self._part(pairs, index, half) for index in (0, 1))).result

    def _part(self, pairs: Any, index: int, dtype: np.dtype) -> Any:
        rank = len(self.aval.shape)
        sliced = hlo.slice(
            pairs,
            mlir.dense_int_array([0] * rank + [index]),
            mlir.dense_int_array([*self.aval.shape, index + 1]),
            mlir.dense_int_array([1] * (rank + 1)),
        )
        return hlo.reshape(_ir_type(jax.core.ShapedArray(self.aval.shape, dtype)), sliced)

    def encode(self, array: np.ndarray) -> np.ndarray:
        # A view needs an order of its own, and of a scalar it takes the scalar itself.
        flat = np.array(array, order="C").reshape(math.prod(array.shape))
        return flat.view(self.carried.dtype).reshape(self.carried.shape)


def wire_of(aval: Any, as_bits: bool = False) -> Wire:
    """The way for a value of type `aval`; `as_bits` where arithmetic may be done on it on its way."""
    dtype = np.dtype(aval.dtype)
    if dtype == np.bool_:
        return Wire(aval)
    if jax.dtypes.itemsize_bits(dtype) < 8:
        return Widened(aval)
    if as_bits and jnp.issubdtype(dtype, np.inexact):
        return Bits(aval)
    return Wire(aval)


def encoder(wires: Sequence[Wire]) -> Any:
    """All of `encode`; nothing at all where nothing is to be done, as is usual."""
    if all(type(wire) is Wire for wire in wires):
        return unchanged
    return lambda arrays: [wire.encode(array) for wire, array in zip(wires, arrays, strict=True)]


def decoder(wires: Sequence[Wire]) -> Any:
    """All of `decode`."""
    if all(type(wire) is Wire for wire in wires):
        return unchanged
    return lambda arrays: [wire.decode(array) for wire, array in zip(wires, arrays, strict=True)]


def unchanged(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    return arrays
