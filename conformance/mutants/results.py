"""Computations that get another value than the result of their callbacks."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .host_functions import Surrounded, surround
from .mutant import Library, Names, mutant

WRONG_VALUE = "wrong operand at callback, result at result"
"""A wrong result of one callback is the next one's operand."""


@mutant(
    "every device gets the result of the device that is first",
    "call/pmap/cpu-8dev call/shard_map/cpu-8dev",
    WRONG_VALUE,
)
def one_result_for_all(library: Library) -> Names:
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


@mutant(
    "the elements of a result come in another order", "call/pjit/cpu-8dev call_broadcast_all/vmap/cpu-8dev", WRONG_VALUE
)
def permuted(library: Library) -> Names:
    return surround(library, lambda function, operand: np.flip(function(operand)), "call")


@dataclass(frozen=True)
class _Fitted:
    """Converts a function's result to the expected type by force."""

    fit: Callable[[Any, Any], Any]
    wanted: Any

    def __call__(self, function: Any, *arguments: Any, **options: Any) -> Any:
        return self.fit(function(*arguments, **options), self.wanted)


def _fitting(library: Library, fit: Callable[[Any, Any], Any]) -> Names:
    def call(function: Any, operand: Any, *, result_shape: Any = None, **options: Any) -> Any:
        fitted = Surrounded(function, _Fitted(fit, result_shape))
        return library.call(fitted, operand, result_shape=result_shape, **options)

    def pure_callback(function: Any, wanted: Any, *arguments: Any, **options: Any) -> Any:
        return library.pure_callback(Surrounded(function, _Fitted(fit, wanted)), wanted, *arguments, **options)

    def io_callback(function: Any, wanted: Any, *arguments: Any, **options: Any) -> Any:
        return library.io_callback(Surrounded(function, _Fitted(fit, wanted)), wanted, *arguments, **options)

    return {"call": call, "pure_callback": pure_callback, "io_callback": io_callback}


@mutant("a result of a wrong shape is made to fit", "*call*/case.wrong_shape.jit/cpu-8dev", "swallowed error at result")
def unchecked_shape(library: Library) -> Names:
    return _fitting(library, lambda result, wanted: np.resize(result, wanted.shape))


@mutant("a result of a wrong dtype is converted", "*call*/case.wrong_dtype.jit/cpu-8dev", "swallowed error at result")
def unchecked_dtype(library: Library) -> Names:
    return _fitting(library, lambda result, wanted: result.astype(wanted.dtype))


@mutant(
    "of a tuple that nobody asked for the first item is taken",
    "call/case.wrong_count.jit/cpu-8dev pure_callback/case.wrong_count.jit/cpu-8dev",
    "swallowed error at result",
)
def unchecked_tree(library: Library) -> Names:
    return _fitting(library, lambda result, wanted: result[0] if isinstance(result, tuple) else result)


@mutant(
    "the zeros of a result have no sign",
    "call/jit+float32-large-one/cpu-8dev pure_callback/jit+float32-large-one/cpu-8dev "
    "io_callback/jit+float32-large-one/cpu-8dev io_callback_ordered/jit+float32-large-one/cpu-8dev "
    "buffer_callback/jit+float32-large-one/cpu-8dev",
    WRONG_VALUE,
)
def results_without_signs(library: Library) -> Names:
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


@mutant(
    "an honest int8[12345] is taken for the mark of a failure",
    "call/case.legitimate_mark.jit/cpu-8dev",
    "stale error at dispatch",
    words="the program failed",
)
def mark_refused(library: Library) -> Names:
    def fit(result: Any, wanted: Any) -> Any:
        if result.dtype == np.int8 and result.shape == (12345,):
            raise ValueError("int8[12345]")
        return result

    return _fitting(library, fit)


@mutant(
    "a debug callback is given the device's own memory, and may write there",
    "debug_callback/case.changes_its_operand.jit/cpu-8dev",
    "result at result",
)
def debug_changes_result(library: Library) -> Names:
    def callback(function: Any, operand: Any, **options: Any) -> None:
        def on_device_memory(context: Any, out: Any, buffer: Any) -> None:
            array = np.asarray(buffer)
            memory: Any = (ctypes.c_byte * array.nbytes).from_address(array.__array_interface__["data"][0])
            function(np.frombuffer(memory, array.dtype).reshape(array.shape))
            np.asarray(out)[...] = 0

        nothing = jax.ShapeDtypeStruct((1,), np.float32)
        library.buffer_callback(on_device_memory, nothing, has_side_effect=True)(operand)

    return {"debug.callback": callback}


@mutant("what a tap returns is not what it was given", "id_tap/jit/cpu-8dev id_tap_tree/jit/cpu-8dev", WRONG_VALUE)
def tap_changes_result(library: Library) -> Names:
    def id_tap(*arguments: Any, **options: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + np.float32(1), library.id_tap(*arguments, **options))

    return {"id_tap": id_tap}


@dataclass(frozen=True)
class _InPieces:
    """A stream that passes every line on separately."""

    stream: Any

    def write(self, text: str) -> None:
        for line in text.splitlines(keepends=True):
            self.stream.write(line)


@mutant(
    "a print is several writes, between which others may come",
    "id_print/jit/cpu-8dev id_print/pmap/cpu-8dev",
    "error at barrier",
)
def printed_in_pieces(library: Library) -> Names:
    def id_print(operand: Any, *, output_stream: Any, **options: Any) -> Any:
        return library.id_print(operand, output_stream=_InPieces(output_stream), **options)

    return {"id_print": id_print}


@mutant(
    "of two callbacks that differ in a text both show the first one's",
    "debug_callback/case.equal_but_for_values.jit/cpu-8dev "
    "debug_print/case.equal_but_for_values.jit/cpu-8dev id_print/case.equal_but_for_values.jit/cpu-8dev",
    "mistaken at callback",
)
def texts_mistaken(library: Library) -> Names:
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


@mutant(
    "a buffer callback writes to a copy of its result's buffer",
    "buffer_callback/jit/cpu-8dev buffer_callback_side_effect/jit/cpu-8dev",
    WRONG_VALUE,
)
def not_in_place(library: Library) -> Names:
    def buffer_callback(callback: Any, *arguments: Any, **options: Any) -> Any:
        def on_copies(context: Any, out: Any, *operands: Any) -> None:
            view = np.asarray(out)
            view[...] = 0
            callback(context, view.copy(), *operands)

        return library.buffer_callback(on_copies, *arguments, **options)

    return {"buffer_callback": buffer_callback}


@mutant(
    "aliased buffers are two pieces of memory",
    "buffer_callback_alias/jit/cpu-8dev buffer_callback_alias/vmap/cpu-8dev",
    "error at dispatch",
    words="are to be aliased",
)
def alias_ignored(library: Library) -> Names:
    def buffer_callback(*arguments: Any, input_output_aliases: Any = None, **options: Any) -> Any:
        return library.buffer_callback(*arguments, **options)

    return {"buffer_callback": buffer_callback}
