"""Functions that keep the buffers that they were lent, or arrays that are views of them; and the targets of buffers.

`np.asarray` can make an array from a buffer of JAX. While that array is alive, JAX may mistake a later buffer at the
same address of the stack for the old one. So these cells call back at many depths of the stack, and then again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import PLANTED, error_of

DEPTH = 12


def deeper(through_map: int, through_reduce: int, run: Callable[[], Any]) -> Any:
    """Run a function below this many frames of C functions, of two sizes."""
    if through_map:
        return next(map(lambda _: deeper(through_map - 1, through_reduce, run), [None]))  # noqa: C417 - its frame is the point
    if through_reduce:
        return functools.reduce(lambda *_: deeper(0, through_reduce - 1, run), [None, None])
    return run()


def _at_all_depths(run: Callable[[], Any]) -> list[Exception]:
    """What it raises there."""
    depths = itertools.product(range(DEPTH), range(DEPTH))
    return [error for depth in depths if (error := error_of(deeper, *depth, run))]


@case("jit", "buffer_callback dlpack_callback", isolated=True)
def keeps_its_view(case: Case) -> None:
    """A callback keeps arrays that are views of operands; later callbacks must still get their own operands."""
    kept: dict[int, Any] = {}

    def keep(buffer: Any) -> None:
        array = np.asarray(buffer)
        # One report for each kept object is enough.
        kept.setdefault(id(array.base), array)

    keeping = _compiled(case, keep)
    _check_not_misled(case, lambda: float(keeping(np.float32(1))))


@case("jit", "buffer_callback", isolated=True)
def fails_and_is_kept(case: Case) -> None:
    """A kept exception keeps what its function made of its buffers: later callbacks still get their own operands."""
    kept: list[Exception | None] = []

    def fail(buffer: Any) -> None:
        array = np.asarray(buffer)
        raise ValueError(PLANTED, array.shape)

    failing = _compiled(case, fail)

    _check_not_misled(case, lambda: kept.append(error_of(failing, np.float32(1))))


@case("jit", "buffer_callback dlpack_callback", "B1 B2 D1")
def operands_by_name(case: Case) -> None:
    """Operands come by the names by which they are given, beside results, and to a function without results."""
    namespace = case.library
    make = namespace.buffer_callback if case.callback.function == "buffer_callback" else namespace.dlpack_callback
    options = {} if case.callback.function == "buffer_callback" else {"in_place": True}
    seen: list[list[float]] = []

    def note(out: Any, x: Any, *, of_c: Any, of_b: Any) -> None:
        seen.append([float(np.asarray(each)) for each in (x, of_b, of_c)])
        for number, each in enumerate(jax.tree.leaves(out)):
            np.asarray(each)[...] = number + 1

    def function(*arguments: Any, **named: Any) -> None:
        # The context of a buffer callback comes first.
        note(*arguments[-2:], **named)

    one = jax.ShapeDtypeStruct((), np.float32)

    def computation(x: Any) -> Any:
        make(function, (), has_side_effect=True, **options)(x, of_b=x + 1, of_c=x + 2)
        return make(function, {"a": one, "b": one}, **options)(x + 10, of_c=x + 12, of_b=x + 11)

    result = jax.jit(computation)(np.float32(1))
    case.barrier()
    case.same("wrong operand", Stage.CALLBACK, sorted(seen), [[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]])
    case.same("result", Stage.RESULT, {name: float(value) for name, value in result.items()}, {"a": 1.0, "b": 2.0})


@case("jit", "buffer_callback dlpack_callback", "B3 D1")
def aliases_by_number(case: Case) -> None:
    """Each operand shares its memory with the result that the aliases name, which is not the one of its own number."""
    options = {} if case.callback.function == "buffer_callback" else {"in_place": True}

    def add_one(*arguments: Any) -> None:
        # The results, each of which holds an operand, come before the two operands.
        for each in arguments[-3]:
            np.asarray(each)[...] += 1

    x, y = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)
    like = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (y, x))
    make = getattr(case.library, case.callback.function)
    through = make(add_one, like, input_output_aliases={0: 1, 1: 0}, **options)
    program = jax.jit(lambda x, y: through(x * 2, y * 3))
    for _ in range(2):
        case.gives((y * 3 + 1, x * 2 + 1), program, x, y)


@case("jit", "buffer_callback", isolated=True)
def returns_a_value(case: Case) -> None:
    """A callback that gets the buffers of its results must return None."""
    compiled = case.compile(lambda x: case.implementation.returning_buffers(case.callback, x))
    case.raises(lambda: compiled(case.operand), "must not return")
    case.drain()


def _compiled(case: Case, look: Callable[[Any], None]) -> Callable[[Any], Any]:
    return jax.jit(lambda x: case.implementation.with_buffer(case.callback, look, x))


def _check_not_misled(case: Case, disturb: Callable[[], Any]) -> None:
    later = _compiled(case, lambda buffer: None)
    # The case may already affect some of these.
    _at_all_depths(disturb)
    values: list[float] = []
    errors = _at_all_depths(lambda: values.append(float(later(np.float32(3)))))
    # The planted failures.
    case.drain()
    if errors:
        witness = f"{len(errors)} of {DEPTH * DEPTH} later callbacks failed: {summary(errors[0])}"
        case.wrong("misled", Stage.DISPATCH, witness)
    elif {*values} - {4.0}:
        case.wrong("misled", Stage.RESULT, f"later callbacks gave {sorted({*values})}, expected 4.0 alone")


TARGETS = {False: "xla_buffer_python_gpu_callback", True: "xla_buffer_python_gpu_callback_cmd_buffer"}
"""The target that XLA calls each time, and the one that it calls once to record what is enqueued."""


@case("jit", "buffer_callback dlpack_callback", "B5")
def command_buffers(case: Case) -> None:
    """B5: on GPUs `command_buffer_compatible` takes the target that XLA records, and without it XLA records none."""

    def nothing(*_: Any) -> None:
        """It is not called."""

    operand = jax.ShapeDtypeStruct((3,), np.float32)
    for compatible, target in TARGETS.items():
        function = getattr(case.library, case.callback.function)(nothing, operand, command_buffer_compatible=compatible)
        text = jax.jit(function).trace(operand).lower(lowering_platforms=("cuda",)).as_text()
        witness = f"with command_buffer_compatible={compatible} no operation has the target {target}"
        case.check(f"@{target}(" in text, "target", Stage.LOWER, witness)
