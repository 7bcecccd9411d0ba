"""The operands that programs pass to callbacks, and the checks of the results, for every kind of data."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.history import Recorder
from ..spec.callbacks import CONSTANT_OPERAND, RETURNED_OFFSET, Callback
from ..spec.data import DataKind, flatten, skeleton
from .host_functions import Sited, parse_array

MISMATCH = np.float32(1024)
"""Each wrong element of a result adds this to the program's number, so that no result is right by accident."""


@dataclass(frozen=True)
class Payload:
    """The data of one callback: the program's plain number, with a constant beside it if the callback takes a tree."""

    callback: Callback

    @property
    def spread(self) -> bool:
        """Whether each leaf is a separate operand."""
        return False

    def operand(self, value: jax.Array) -> Any:
        return {"constant": np.float32(CONSTANT_OPERAND), "value": value} if self.callback.takes_tree else value

    def wanted(self, value: jax.Array) -> Any:
        return jax.ShapeDtypeStruct(jnp.shape(value), jnp.float32)

    def answer(self, operand: Any) -> Any:
        """What the host function returns: the operand plus one."""
        value = operand["value"] if isinstance(operand, dict) else operand
        # NumPy makes a scalar of `value + 1` for a scalar array; the contract wants an array.
        return np.asarray(value + np.float32(RETURNED_OFFSET))

    def parse(self, text: str) -> Any:
        """The event of a callback from its printed text."""
        return parse_array(text)

    def seen(self, operand: Any, site: str) -> str:
        """The site of an event with this operand, with any error in the operand's tree."""
        return site

    def new(self, value: jax.Array) -> Any:
        """The right results, which the program computes itself."""
        return value + np.float32(RETURNED_OFFSET)

    def received(self, value: jax.Array, result: Any) -> jax.Array:
        """The program's number, from results with new values."""
        return result

    def passed(self, value: jax.Array, result: Any) -> jax.Array:
        """The program's number, from an operand that the callback has returned."""
        return result["value"] if self.callback.takes_tree else result


@dataclass(frozen=True)
class DataPayload(Payload):
    """The program's number as a kind of data; the program compares results element by element."""

    data: DataKind

    @property
    def spread(self) -> bool:
        host_callback = self.callback.function in ("id_tap", "id_print", "call")
        return self.data.of_structure.spread and not (host_callback or self.callback.takes_tree)

    def operand(self, value: jax.Array) -> Any:
        return self._built(_operand(self.data, value))

    def wanted(self, value: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.new(value))

    def answer(self, operand: Any) -> Any:
        leaves = flatten(operand["value"] if self.callback.takes_tree else operand)
        return self.data.result_tree(self.data.incremented([np.asarray(leaf) for leaf in leaves]))

    def parse(self, text: str) -> Any:
        return np.asarray(text.strip())

    def seen(self, operand: Any, site: str) -> str:
        found = skeleton(operand)
        wanted = skeleton(self._built([0] * self.data.of_structure.leaves))
        return site if found == wanted else f"{site} with a tree like {found} for one like {wanted}"

    def _built(self, leaves: Sequence[Any]) -> Any:
        tree = self.data.of_structure.build(leaves)
        return {"constant": np.float32(CONSTANT_OPERAND), "value": tree} if self.callback.takes_tree else tree

    def new(self, value: jax.Array) -> Any:
        return self.data.result_tree(_results(self.data, value))

    def received(self, value: jax.Array, result: Any) -> jax.Array:
        return self._checked(value + np.float32(RETURNED_OFFSET), result, self.new(value))

    def passed(self, value: jax.Array, result: Any) -> jax.Array:
        wanted = self.operand(value)
        if self.callback.takes_tree:
            result, wanted = result["value"], wanted["value"]
        return self._checked(value, result, wanted)

    def _checked(self, number: jax.Array, result: Any, wanted: Any) -> jax.Array:
        """The number, from the result if the result carries it; it is wrong if any element of the result is wrong."""
        if skeleton(result) != skeleton(wanted):
            raise AssertionError(f"the result is a tree like {skeleton(result)}, not like {skeleton(wanted)}")
        leaves = flatten(result)
        if self.data.of_structure.has_carrier:
            number = leaves[0]
        return _with_mismatches(number, leaves, flatten(wanted))


# Under jit for speed: JAX compiles this common part of a kind's programs once, and not operation by operation. So also
# in cells without jit, which are about callbacks and transforms.
@jax.disable_jit(False)
@functools.partial(jax.jit, static_argnums=0)
def _operand(data: DataKind, value: jax.Array) -> list[Any]:
    return _keys(data, data.operand(value, jnp))


@jax.disable_jit(False)
@functools.partial(jax.jit, static_argnums=0)
def _results(data: DataKind, value: jax.Array) -> list[Any]:
    return _keys(data, data.results(value, jnp))


def _keys(data: DataKind, leaves: Sequence[Any]) -> list[Any]:
    """Words as typed keys, if the kind has typed keys; the carrier is not a key."""
    if data.element != "typed_key":
        return list(leaves)
    return [jax.random.wrap_key_data(leaf) if leaf.dtype == np.uint32 else leaf for leaf in leaves]


@jax.disable_jit(False)
@jax.jit
def _with_mismatches(number: jax.Array, leaves: Sequence[Any], wanted: Sequence[Any]) -> jax.Array:
    wrong = sum(mismatches(leaf, other, number.ndim) for leaf, other in zip(leaves, wanted, strict=True))
    return number + jax.lax.stop_gradient(wrong) * MISMATCH


def mismatches(leaf: Any, wanted: Any, rank: int) -> jax.Array:
    """The number of wrong elements, for each of the program's numbers."""
    leaf, wanted = jnp.asarray(leaf), jnp.asarray(wanted)
    if (leaf.shape, leaf.dtype) != (wanted.shape, wanted.dtype):
        raise AssertionError(f"a result is {leaf.dtype}{list(leaf.shape)}, not {wanted.dtype}{list(wanted.shape)}")
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf, wanted = jax.random.key_data(leaf), jax.random.key_data(wanted)
    elif leaf.dtype.itemsize == 1:
        # Some platforms cannot compare in these types.
        leaf, wanted = leaf.astype(jnp.float32), wanted.astype(jnp.float32)
    axes = tuple(range(min(rank, leaf.ndim), leaf.ndim))
    return jnp.sum(differs(leaf, wanted), axis=axes, dtype=jnp.int32).astype(jnp.float32)


def differs(leaf: jax.Array, wanted: jax.Array) -> jax.Array:
    """Where elements differ; zeros of different signs do."""
    if jnp.iscomplexobj(leaf):
        return differs(leaf.real, wanted.real) | differs(leaf.imag, wanted.imag)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return (leaf != wanted) | (jnp.signbit(leaf) != jnp.signbit(wanted))
    return leaf != wanted


@dataclass(frozen=True, repr=False)
class ProgramFunction(Sited):
    """The host function of a callback: it records what it gets, and returns its operand plus one if that is wanted.

    Equal ones make equal primitives, so the programs of a worker share JAX's compiled executables.
    """

    site: str
    recorder: Recorder
    payload: Payload

    def __call__(self, *given: Any, device: Any = None) -> Any:
        callback = self.payload.callback
        operands, transforms = (given[:-1], given[-1]) if callback.function == "id_tap" else (given, ())
        operand = operands if self.payload.spread else operands[0]
        with self.recorder.callback(self.payload.seen(operand, self.site), operand, transforms, device):
            return self.payload.answer(operand) if callback.returns_new_value else None


def payload_of(callback: Callback, data: DataKind) -> Payload:
    return Payload(callback) if data.plain else DataPayload(callback, data)
