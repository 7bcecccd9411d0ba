"""Buffers that a callback is lent: their memory, their time, and the stream on which they are ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.checks import error_of

START = np.arange(4, dtype=np.float32)
LIKE = jax.ShapeDtypeStruct(START.shape, START.dtype)


@case("jit", "dlpack_callback", "D1")
def used_after_return(case: Case) -> None:
    """D1: what was lent, of operands and results, is refused when the function has returned, and when it has raised."""
    kept: list[Any] = []
    fails = False

    def copies(out: Any, operand: Any) -> None:
        kept.extend([out, operand])
        case.same(
            "wrong operand", Stage.CALLBACK, (operand.shape, np.asarray(operand).tolist()), ((4,), START.tolist())
        )
        np.asarray(out)[...] = np.asarray(operand)
        if fails:
            raise ValueError

    program = jax.jit(case.library.dlpack_callback(copies, LIKE, in_place=True))
    case.gives(START, program, START)
    fails = True
    case.raises(lambda: program(START))
    case.drain()
    case.same("wrong count", Stage.CALLBACK, len(kept), 4, "buffers")
    uses: tuple[Callable[[Any], Any], ...] = (lambda one: one.shape, np.asarray, np.from_dlpack)
    for lent in kept:
        for use in uses:
            error = error_of(use, lent)
            refused = isinstance(error, BufferError) and "Copy what should be kept" in str(error)
            case.check(refused, "not refused", Stage.CALLBACK, f"a use of a buffer that was lent came to {error!r}")


@case("jit", "dlpack_callback", "D1")
def streams_by_name(case: Case) -> None:
    """D1: `with_stream` passes the stream of the device, which a CPU has not, to functions of each form."""
    streams: list[Any] = []

    def double(operand: Any, *, stream: Any) -> Any:
        streams.append(stream)
        return 2 * np.asarray(operand)

    def fill(out: Any, operand: Any, *, stream: Any) -> None:
        np.asarray(out)[...] = double(operand, stream=stream)

    expected = type(None) if case.devices[0].platform == "cpu" else int
    for function, options in ((double, {}), (fill, {"in_place": True}), (double, {"has_side_effect": True})):
        program = jax.jit(case.library.dlpack_callback(function, LIKE, with_stream=True, **options))
        streams.clear()
        case.gives(2 * START, program, START)
        case.same("wrong stream", Stage.CALLBACK, [*map(type, streams)], [expected])


@case("jit", "buffer_callback dlpack_callback", "B3", functions="barrier_wait")
def aliased_by_name(case: Case) -> None:
    """B3: an operand that is passed by name may share its memory with a result: by its place among all leaves."""
    seen: list[Any] = []

    def add(*arguments: Any, y: Any) -> None:
        out, x = arguments[-2:]
        seen.append(np.asarray(out).tolist())
        np.asarray(out)[...] += np.asarray(x)

    name = case.callback.function
    options = {"in_place": True} if name == "dlpack_callback" else {}
    function = getattr(case.library, name)(add, LIKE, input_output_aliases={1: 0}, **options)
    case.gives(2 * START + 10, jax.jit(lambda x: function(x, y=x + 10)), START)
    case.same("wrong operand", Stage.CALLBACK, seen, [(START + 10).tolist()], "what the result held at first")


@case("jit", "dlpack_callback", "D2")
def shapes_of_each_call(case: Case) -> None:
    """D2: a function that makes the shapes makes them anew for each call, of other shapes and types, in one program."""
    double = case.library.dlpack_callback(lambda x: 2 * np.from_dlpack(x), lambda x: x)
    operands = (START, np.arange(6, dtype=np.int32), np.ones((2, 3), np.float32))
    case.gives([2 * each for each in operands], lambda: jax.jit(lambda *each: [double(x) for x in each])(*operands))
