"""Computations that get another value than the result of their callbacks."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .host_functions import Surrounded, around, instead, surround
from .mutant import Library, Names, Plant, mutant

WRONG_VALUE = "wrong operand at callback, result at result"
"""A wrong result of one callback is the next one's operand."""


@mutant("call/pmap/cpu-8dev call/shard_map/cpu-8dev", WRONG_VALUE)
def one_result_for_all(library: Library) -> Names:
    """Every device gets the result of the device that is first."""
    counts: Counter[Any] = Counter()
    results: dict[Any, Any] = {}
    lock = threading.Lock()

    def run(function: Any, operand: Any, device: Any) -> Any:
        result = function(operand)
        with lock:
            number = counts[function, device.id]
            counts[function, device.id] += 1
            return results.setdefault((function, number), result)

    def call(function: Any, operand: Any, **options: Any) -> Any:
        return library.call(Surrounded(function, run), operand, **options, call_with_device=True)

    def barrier_wait() -> None:
        library.barrier_wait()
        counts.clear()
        results.clear()

    return {"call": call, "barrier_wait": barrier_wait}


@mutant("call/pjit/cpu-8dev call_broadcast_all/vmap/cpu-8dev", WRONG_VALUE)
@around("call")
def permuted(function: Any, operand: Any) -> Any:
    """The elements of a result come in another order."""
    return np.flip(function(operand))


def _fitting(fit: Callable[[Any, Any], Any]) -> Plant:
    """Functions whose results this one changes, which receives the wanted type as well."""

    @instead("call", "pure_callback", "io_callback")
    @functools.wraps(fit)
    def fitted(callback: Any, function: Any, operand_or_wanted: Any, *arguments: Any, **options: Any) -> Any:
        wanted = options.get("result_shape", operand_or_wanted)
        run = lambda function, *operands: fit(function(*operands), wanted)
        return callback(Surrounded(function, run), operand_or_wanted, *arguments, **options)

    return fitted


@mutant("*call*/case.wrong_shape.jit/cpu-8dev", "swallowed error at result")
@_fitting
def unchecked_shape(result: Any, wanted: Any) -> Any:
    """A result of a wrong shape is made to fit."""
    return np.resize(result, wanted.shape)


@mutant("*call*/case.wrong_dtype.jit/cpu-8dev", "swallowed error at result")
@_fitting
def unchecked_dtype(result: Any, wanted: Any) -> Any:
    """A result of a wrong dtype is converted."""
    return result.astype(wanted.dtype)


@mutant("call/case.wrong_count.jit/cpu-8dev pure_callback/case.wrong_count.jit/cpu-8dev", "swallowed error at result")
@_fitting
def unchecked_tree(result: Any, wanted: Any) -> Any:
    """Of a tuple that nobody asked for the first item is taken."""
    return result[0] if isinstance(result, tuple) else result


@mutant(
    "call/jit+float32-large-one/cpu-8dev pure_callback/jit+float32-large-one/cpu-8dev "
    "io_callback/jit+float32-large-one/cpu-8dev io_callback_ordered/jit+float32-large-one/cpu-8dev "
    "buffer_callback/jit+float32-large-one/cpu-8dev",
    WRONG_VALUE,
)
def results_without_signs(library: Library) -> Names:
    """The zeros of a result have no sign."""

    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        # A sum of zeros of different signs has none.
        return jax.tree.map(lambda leaf: leaf + np.zeros_like(leaf), function(*arguments, **options))

    def on_buffers(function: Any, context: Any, out: Any, *operands: Any) -> None:
        function(context, out, *operands)
        for buffer in jax.tree.leaves(out):
            array = np.asarray(buffer)
            array += np.zeros_like(array)

    return {
        **surround(library, run, "call", "pure_callback", "io_callback"),
        **surround(library, on_buffers, "buffer_callback"),
    }


@mutant("call/case.legitimate_mark.jit/cpu-8dev", "stale error at dispatch", words="the program failed")
@_fitting
def mark_refused(result: Any, wanted: Any) -> Any:
    """An honest int8[12345] is taken for the mark of a failure."""
    if result.dtype == np.int8 and result.shape == (12345,):
        raise ValueError("int8[12345]")
    return result


@mutant("debug_callback/case.changes_its_operand.jit/cpu-8dev", "result at result")
def debug_changes_result(library: Library) -> Names:
    """A debug callback is given the device's own memory, and may write there."""

    def callback(function: Any, operand: Any, **options: Any) -> None:
        def on_device_memory(context: Any, out: Any, buffer: Any) -> None:
            array = np.asarray(buffer)
            memory: Any = (ctypes.c_byte * array.nbytes).from_address(array.__array_interface__["data"][0])
            function(np.frombuffer(memory, array.dtype).reshape(array.shape))
            np.asarray(out)[...] = 0

        nothing = jax.ShapeDtypeStruct((1,), np.float32)
        library.buffer_callback(on_device_memory, nothing, has_side_effect=True)(operand)

    return {"debug.callback": callback}


@mutant("id_tap/jit/cpu-8dev id_tap_tree/jit/cpu-8dev", WRONG_VALUE)
@instead("id_tap")
def tap_changes_result(tap: Any, *arguments: Any, **options: Any) -> Any:
    """What a tap returns is not what it was given."""
    return jax.tree.map(lambda leaf: leaf + np.float32(1), tap(*arguments, **options))


@dataclass(frozen=True)
class _InPieces:
    """A stream that passes every line on separately."""

    stream: Any

    def write(self, text: str) -> None:
        for line in text.splitlines(keepends=True):
            self.stream.write(line)


@mutant("id_print/jit/cpu-8dev id_print/pmap/cpu-8dev", "error at barrier")
@instead("id_print")
def printed_in_pieces(id_print: Any, operand: Any, *, output_stream: Any, **options: Any) -> Any:
    """A print is several writes, between which others may come."""
    return id_print(operand, output_stream=_InPieces(output_stream), **options)


@mutant(
    "debug_callback/case.equal_but_for_values.jit/cpu-8dev "
    "debug_print/case.equal_but_for_values.jit/cpu-8dev id_print/case.equal_but_for_values.jit/cpu-8dev",
    "mistaken at callback",
)
def texts_mistaken(library: Library) -> Names:
    """Of two callbacks that differ in a text both show the first one's."""
    texts: dict[Any, Any] = {}

    def first_of(name: str) -> Callable[[Any], Any]:
        return lambda leaf: texts.setdefault(name, leaf) if isinstance(leaf, str) else leaf

    def callback(function: Any, *arguments: Any, **options: Any) -> Any:
        return library.debug.callback(function, *jax.tree.map(first_of("argument"), arguments), **options)

    def print_(text: str, *arguments: Any, **options: Any) -> Any:
        # Only among results with the same fields, since others do not fit.
        return library.debug.print(first_of(text.partition("{")[2])(text), *arguments, **options)

    def id_print(operand: Any, **options: Any) -> Any:
        return library.id_print(operand, **jax.tree.map(first_of("label"), options))

    return {"debug.callback": callback, "debug.print": print_, "id_print": id_print}


@mutant("buffer_callback/jit/cpu-8dev buffer_callback_side_effect/jit/cpu-8dev", WRONG_VALUE)
@around("buffer_callback")
def not_in_place(function: Any, context: Any, out: Any, *operands: Any) -> None:
    """A buffer callback writes to a copy of its result's buffer."""
    view = np.asarray(out)
    view[...] = 0
    function(context, view.copy(), *operands)


@mutant(
    "buffer_callback_alias/jit/cpu-8dev buffer_callback_alias/vmap/cpu-8dev",
    "error at dispatch",
    words="are to be aliased",
)
@instead("buffer_callback")
def alias_ignored(buffer_callback: Any, *arguments: Any, input_output_aliases: Any = None, **options: Any) -> Any:
    """Aliased buffers are two pieces of memory."""
    return buffer_callback(*arguments, **options)
