"""Callbacks under vmap whose operands differ: in rank, in having a batch, in its axis, in having no element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Batching, Runs
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.programs import WIDTH

ELEMENTS = 3
# The batch is its last axis.
LAST = np.arange(2 * 4 * ELEMENTS, dtype=np.float32).reshape(2, 4, ELEMENTS)
# Without a batch, and longer than the batch.
FIXED = np.arange(5, dtype=np.float32)
SMALL = np.int8(7)
ONE = jax.ShapeDtypeStruct((2, 4), np.float32)

WITH_METHOD = (
    "call_sequential call_sequential_unrolled call_expand_dims call_broadcast_all pure_callback_sequential"
    " pure_callback_sequential_unrolled pure_callback_expand_dims pure_callback_broadcast_all"
    " buffer_callback_side_effect buffer_callback_alias dlpack_callback_in_place dlpack_callback_side_effect"
)

Shapes = list[tuple[int, ...]]


def _sum(operands: Any) -> Any:
    """The sum of an element's operands, or of those of all elements."""
    matrix, row, number = map(np.asarray, operands)
    return matrix + row.sum(-1)[..., None, None] + number[..., None, None].astype(np.float32)


def _wanted(batching: Batching) -> list[Shapes]:
    """The shapes of the operands of each call."""
    element = [ONE.shape, FIXED.shape, ()]
    if batching in (Batching.SEQUENTIAL, Batching.REFUSED):
        return [element] * ELEMENTS
    # A whole batch: how an operand without one comes is the method's to say.
    without = 1 if batching is Batching.EXPAND_DIMS else ELEMENTS
    return [[(ELEMENTS, *ONE.shape), (without, *FIXED.shape), (without,)]]


@case("jit", f"io_callback debug_callback {WITH_METHOD}", "H8 X2 X3 X4 B4")
def ranks_and_axes(case: Case) -> None:
    """Each method gives the function operands of its shapes, if some have a batch and others have none.

    A matrix whose last axis is the batch, beside a longer row and a small integer.
    """
    seen: list[Shapes] = []
    types: set[str] = set()

    def host(operands: Any) -> Any:
        seen.append([np.shape(each) for each in operands])
        types.add(str(np.asarray(operands[2]).dtype))
        return _sum(operands)

    def one(matrix: Any) -> Any:
        # In a program of its own the number is a literal.
        return jax.jit(lambda x: case.apply(host, (x, FIXED, SMALL), ONE))(matrix)

    def batch(x: Any) -> Any:
        result = jax.vmap(one, in_axes=2)(x)
        return result if case.callback.returns_new_value else result[0]

    elements = np.moveaxis(LAST, 2, 0)
    total = elements + FIXED.sum() + np.float32(SMALL)
    wanted = _wanted(case.callback.batching)
    for label, program in (("outside jit", batch), ("in jit", jax.jit(batch))):
        seen.clear()
        expected = total if case.callback.returns_new_value else elements
        case.gives(expected, program, LAST, what=label)
        case.barrier()
        case.same("wrong operand", Stage.CALLBACK, seen, wanted, f"{label} it got")
    case.same("wrong operand", Stage.CALLBACK, types, {"int8"}, "the types of the small integer")


@case("jit", "pure_callback buffer_callback dlpack_callback", "X2 B4 D1")
def vectorized_as_before(case: Case) -> None:
    """The method of programs with `vectorized=True`: one call, and an operand without a batch comes as it is."""
    _by_method(case, "legacy_vectorized", {}, [ONE.shape, FIXED.shape, ()])


@case("jit", "buffer_callback dlpack_callback", "B4 D1")
def shared_in_a_batch(case: Case) -> None:
    """An operand that shares its memory with a result has the result's shape, with a batch or without one."""
    shapes = [(ELEMENTS, *ONE.shape), (1, *FIXED.shape), (1,)]
    _by_method(case, "expand_dims", {"input_output_aliases": {0: 0}}, shapes)


def _by_method(case: Case, method: str, options: dict[str, Any], without_batch: Shapes) -> None:
    """One call of a whole batch; in each program one of the operands has one."""
    seen: list[Shapes] = []

    def total(operands: Any) -> Any:
        seen.append([np.shape(each) for each in operands])
        return np.broadcast_to(_sum(operands), (ELEMENTS, *ONE.shape))

    def fill(context: Any, out: Any, *operands: Any) -> None:
        np.asarray(out)[...] = total([np.asarray(each).copy() for each in operands])

    def call(*operands: Any) -> Any:
        namespace = case.library
        if case.callback.function == "pure_callback":
            return namespace.pure_callback(lambda *given: total(given), ONE, *operands, vmap_method=method)
        if case.callback.function == "buffer_callback":
            return namespace.buffer_callback(fill, ONE, vmap_method=method, **options)(*operands)
        copied: Callable[..., Any] = lambda *given: total([np.asarray(each).copy() for each in given])
        return namespace.dlpack_callback(copied, ONE, vmap_method=method, **options)(*operands)

    operands: tuple[Any, ...] = (LAST[..., 0], FIXED, np.float32(SMALL))
    for place, operand in enumerate(operands):
        batch = np.stack([operand, operand + 1, operand + 2])
        given = [*operands]
        given[place] = batch
        axes = [0 if number == place else None for number in range(len(operands))]
        wanted = [*without_batch]
        wanted[place] = batch.shape
        expected = np.stack([_sum([*operands[:place], each, *operands[place + 1 :]]) for each in batch])
        label = f"with a batch of operand {place}"
        seen.clear()
        program = jax.jit(jax.vmap(call, in_axes=axes))
        case.gives(expected, lambda p=program, g=given: p(*g), what=label)
        case.same("wrong operand", Stage.CALLBACK, seen, [wanted], f"{label} it got")
    case.barrier()


@case("jit", WITH_METHOD, "H8 X2 B4 D1")
def as_long_as_the_batch(case: Case) -> None:
    """An operand without a batch comes whole to each call, also if it has as many elements as the batch."""
    seen: list[Shapes] = []

    def host(operands: Any) -> Any:
        number, row = map(np.asarray, operands)
        seen.append([number.shape, row.shape])
        return (number + row.sum(-1)).astype(np.float32)

    numbers, row = np.arange(ELEMENTS, dtype=np.float32), np.full(ELEMENTS, 10, np.float32)
    shape = jax.ShapeDtypeStruct((), np.float32)

    def in_scan(number: Any, row: Any) -> Any:
        def step(carry: Any, _: Any) -> tuple[Any, None]:
            return case.apply(host, (carry, row), shape), None

        return jax.lax.scan(step, number, None, length=2)[0]

    program = jax.jit(jax.vmap(in_scan, in_axes=(0, None)))
    case.gives(numbers + 2 * row.sum(), program, numbers, row, what="a scan of batch elements")
    case.barrier()
    if case.callback.batching is Batching.SEQUENTIAL:
        case.same("wrong operand", Stage.CALLBACK, seen, [[(), row.shape]] * (2 * ELEMENTS), "the shapes")


@case("jit", f"id_tap io_callback {WITH_METHOD}", "H1 H7 H8 X2 X3 B4")
def along_each_axis(case: Case) -> None:
    """The results of a batch are right along each axis of a cube, in which no shape shows a wrong one."""
    cube = np.arange(ELEMENTS**3, dtype=np.float32).reshape(ELEMENTS, ELEMENTS, ELEMENTS)
    weights = np.arange(ELEMENTS**2, dtype=np.float32).reshape(ELEMENTS, ELEMENTS)

    def check(axes: Mapping[str, int]) -> None:
        def program(x: Any) -> Any:
            of_element = lambda x: case.apply(add_one, x) * weights
            return [jax.vmap(of_element, in_axes=axis, out_axes=axis)(x) for axis in axes.values()]

        wanted = [case.expected_of(cube) * np.expand_dims(weights, axis) for axis in axes.values()]
        case.gives(wanted, jax.jit(program), cube)
        case.barrier()

    case.together({f"along axis {axis}": axis for axis in range(cube.ndim)}, check)


BY_METHOD = (
    "call_sequential call_sequential_unrolled call_expand_dims call_broadcast_all io_callback"
    " pure_callback_sequential pure_callback_expand_dims pure_callback_broadcast_all"
)


@case("jit", f"id_tap {BY_METHOD}", "H7 H8 X2 X3")
def empty_batches(case: Case) -> None:
    """Over an axis of no elements nothing is called, but for a callback of whole batches, which gets an empty one."""
    host = case.host()

    def batch(x: Any) -> Any:
        like = jax.ShapeDtypeStruct((WIDTH,), x.dtype)
        return jax.vmap(lambda each: case.apply(host, each, like))(x)

    whole = case.callback.batching in (Batching.STACKED, Batching.EXPAND_DIMS, Batching.BROADCAST_ALL)
    wanted = [(0, WIDTH)] if whole else []
    floats, integers = np.zeros((0, WIDTH), np.float32), np.zeros((0, WIDTH), np.int16)
    for label, program, empty in (
        ("outside jit", batch, floats),
        ("in jit", jax.jit(batch), floats),
        ("in jit, of integers,", jax.jit(batch), integers),
    ):
        case.forget()
        case.gives(empty, program, jnp.asarray(empty), what=label)
        case.barrier()
        # The compiler knows a pure function's result without elements.
        if host.count or case.callback.runs is Runs.ONCE:
            shapes = [event.leaves[0].shape for event in case.events]
            case.same("wrong count", Stage.CALLBACK, shapes, wanted, label)
