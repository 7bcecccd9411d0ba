"""Callbacks that get another value than their operand."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

from .host_functions import around, instead, surround
from .mutant import Library, Names, mutant

SEVERAL_KIB = 4096
OF_SEVERAL_KIB = " ".join(
    f"{name}/jit+float32-large-one/cpu-8dev"
    for name in ("id_tap", "call", "pure_callback", "io_callback", "io_callback_ordered", "debug_callback")
)
ARRAYS_GIVEN = ("id_tap", "call", "pure_callback", "io_callback", "debug.callback")


@mutant("id_tap/jit/cpu-8dev id_tap/scan/cpu-8dev", "stale operand at callback")
@around("id_tap", having=dict)
def stale_operand(previous: Any, function: Any, operand: Any, *arguments: Any, **options: Any) -> None:
    """A callback is given what it was given the time before."""
    given = previous.get(function, operand)
    previous[function] = operand
    function(given, *arguments, **options)


@mutant(
    "id_tap/jit/cpu-8dev id_tap/scan/cpu-8dev io_callback_ordered/scan/cpu-8dev "
    "io_callback/case.keeps_its_operand.jit/cpu-8dev io_callback/case.donated.jit/cpu-8dev",
    "torn operand at callback",
)
def shared_buffer(library: Library) -> Names:
    """All callbacks are given one buffer, which is written anew for each."""
    buffers: dict[Any, Any] = {}
    lock = threading.Lock()

    def run(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
        with lock:
            leaves, tree = jax.tree.flatten(operand)
            for place, leaf in enumerate(leaves):
                leaves[place] = buffers.setdefault((place, leaf.shape, leaf.dtype), np.empty_like(leaf))
                leaves[place][...] = leaf
            return function(jax.tree.unflatten(tree, leaves), *arguments, **options)

    return surround(library, run, "id_tap", "io_callback")


@mutant("id_tap/case.keeps_large_operands.jit/* call/case.keeps_large_operands.jit/*", "torn operand at callback")
def large_lent(library: Library) -> Names:
    """Operands of 1 MiB and more lie in memory that is used again while a callback keeps them."""
    memory: dict[int, Any] = {}
    lock = threading.Lock()

    def lent(leaf: Any) -> Any:
        if leaf.nbytes < 1 << 20:
            return leaf
        buffer = memory.setdefault(leaf.nbytes, np.empty_like(leaf).reshape(-1))
        buffer[...] = leaf.reshape(-1)
        return buffer.reshape(leaf.shape)

    def run(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
        with lock:
            return function(jax.tree.map(lent, operand), *arguments, **options)

    return surround(library, run, *ARRAYS_GIVEN)


@mutant(OF_SEVERAL_KIB, "wrong operand at callback")
@around(*ARRAYS_GIVEN)
def wrong_at_the_end(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """The last element of an operand of several KiB is another one."""
    return function(jax.tree.map(_with_another_end, operand), *arguments, **options)


def _with_another_end(leaf: Any) -> Any:
    array = np.array(leaf)
    if array.nbytes >= SEVERAL_KIB:
        array.flat[-1] = array.flat[0]
    return array


@mutant(OF_SEVERAL_KIB, "wrong operand at callback")
@around(*ARRAYS_GIVEN)
def zeros_without_signs(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """The zeros of an operand have no sign."""
    return function(jax.tree.map(_unsigned, operand), *arguments, **options)


def _unsigned(leaf: Any) -> Any:
    array = np.asarray(leaf)
    return array + array.dtype.type(0) if array.dtype.kind == "f" else leaf


@mutant(
    "id_tap/case.dtypes.* id_tap/case.odd_lengths.jit/* call/case.dtypes.* io_callback/case.dtypes.*",
    "wrong operand at callback",
)
@around("id_tap", "call", "io_callback")
def signs_lost(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """Integers of less than a byte come without their signs."""
    function(jax.tree.map(_without_sign, operand), *arguments, **options)
    return operand


def _without_sign(leaf: Any) -> Any:
    mask = {"int2": 0b11, "int4": 0b1111}.get(leaf.dtype.name)
    return leaf if mask is None else leaf.astype(np.int8) & np.int8(mask)


@mutant("id_tap/case.typed_keys.* id_tap/case.keys_on_a_mesh.* call*/case.typed_keys.*", "error at trace")
@instead("id_tap", "call")
def keys_refused(callback: Any, function: Any, operand: Any, **options: Any) -> Any:
    """A typed key cannot be an operand."""
    if any(jax.numpy.issubdtype(jax.typeof(leaf).dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(operand)):
        raise TypeError("a typed key is no operand")
    return callback(function, operand, **options)


@mutant("id_tap/jit/cpu-8dev id_tap/scan/cpu-8dev", "wrong operand at callback")
@around("id_tap")
def rounded(function: Any, operand: Any, *arguments: Any, **options: Any) -> None:
    """Operands lose precision on their way."""
    function(operand.astype(np.float16).astype(np.float32) * np.float32(1.001), *arguments, **options)


@mutant("id_tap/case.dtypes.* call/case.dtypes.*", "wrong operand at callback")
@around("id_tap", "call")
def only_float32(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """All operands become float32."""
    narrowed = jax.tree.map(lambda leaf: leaf.real.astype(np.float32), operand)
    result = function(narrowed, *arguments, **options)
    return None if result is None else jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), result, operand)


@mutant("id_tap/case.empty_batches.jit/cpu-8dev", "wrong count at callback")
@around("id_tap", "call")
def empty_lost(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """What has no elements is not handed over."""
    if any(leaf.size for leaf in jax.tree.leaves(operand)):
        return function(operand, *arguments, **options)
    return operand


@mutant(
    "id_tap/case.same_function_of_other_operands.jit/* call/case.same_function_of_other_operands.jit/*",
    "mistaken at callback",
)
@around("id_tap", "call")
def flattened(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
    """Callbacks are given the leaves of its operand, and not their tree."""
    leaves = jax.tree.leaves(operand)
    return function(leaves[0] if len(leaves) == 1 else tuple(leaves), *arguments, **options)
