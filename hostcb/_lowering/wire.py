"""The carried types: those in which values cross between device and host if they cannot cross in their own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from .._compat.extend import hlo


def _ir_type(aval: Any) -> Any:
    return mlir.ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(np.dtype(aval.dtype)))


@dataclasses.dataclass(frozen=True)
class Wire:
    """How one value crosses: `aval` is its type in the program, `carried` the type that crosses."""

    aval: Any

    @property
    def carried(self) -> Any:
        return jax.core.ShapedArray(self.aval.shape, self.aval.dtype)

    def pack(self, value: Any) -> Any:
        """Convert an operand to its carried type, on the device."""
        return value

    def unpack(self, value: Any) -> Any:
        """Convert a result from its carried type, on the device."""
        return value

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Convert a result to its carried type, on the host."""
        return array

    def decode(self, array: np.ndarray) -> np.ndarray:
        """Convert an operand from its carried type, on the host."""
        return array


class Widened(Wire):
    """Types of less than a byte: packed on the device, but a whole byte each in NumPy."""

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
    """Floats carried as unsigned integers with the same bits; for results only.

    XLA spreads a result over a mesh by adding zeros to it. Adding floats loses the sign of zero and flushes denormals;
    adding integers loses nothing.
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
        # NumPy refuses to view a scalar, or a non-contiguous array, as a type of another size.
        flat = np.array(array).reshape(math.prod(array.shape))
        return flat.view(self.carried.dtype).reshape(self.carried.shape)


class WidenedBits(Widened):
    """Floats of less than a byte, carried as the bits of the wider float; for results only, as `Bits` is."""

    @property
    def carried(self) -> Any:
        return jax.core.ShapedArray(self.aval.shape, np.uint16)

    def unpack(self, value: Any) -> Any:
        return super().unpack(hlo.BitcastConvertOp(_ir_type(super().carried), value).result)

    def encode(self, array: np.ndarray) -> np.ndarray:
        return array.astype(super().carried.dtype).view(self.carried.dtype)


def wire_of(aval: Any, as_bits: bool = False) -> Wire:
    """Return the wire for a value of type `aval`; `as_bits` if XLA may do arithmetic on the carried value."""
    dtype = np.dtype(aval.dtype)
    if dtype == np.bool_:
        return Wire(aval)
    as_bits = as_bits and jnp.issubdtype(dtype, np.inexact)
    if jax.dtypes.itemsize_bits(dtype) < 8:
        return WidenedBits(aval) if as_bits else Widened(aval)
    return Bits(aval) if as_bits else Wire(aval)


def encoder(wires: Sequence[Wire]) -> Any:
    """Return the function that encodes all results; `unchanged` if no wire converts, which is usual."""
    if all(type(wire) is Wire for wire in wires):
        return unchanged
    return lambda arrays: [wire.encode(array) for wire, array in zip(wires, arrays, strict=True)]


def decoder(wires: Sequence[Wire]) -> Any:
    """Return the function that decodes all operands; `unchanged` if no wire converts, which is usual."""
    if all(type(wire) is Wire for wire in wires):
        return unchanged
    return lambda arrays: [wire.decode(array) for wire, array in zip(wires, arrays, strict=True)]


def unchanged(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    return arrays
