"""Fault cells of results in the memory layouts and byte orders that NumPy's functions return, and of wrong shapes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier, check_value, error_of
from .harness.registry import planted
from .traces import library

ROUNDS = 2
LARGE_SIDE = 1025


@planted("jit", "call pure_callback io_callback dlpack_callback", "H3 X2 X3 D1")
def strided_results_at_once(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Results that are not row-major, beside one that is."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    results = {
        "plain": matrix,
        "transposed": np.ascontiguousarray(matrix.T).T,
        "backwards": np.ascontiguousarray(matrix[::-1, ::-1])[::-1, ::-1],
        "every other": np.repeat(matrix, 2, axis=1)[:, ::2],
        "broadcast": np.broadcast_to(matrix[0], (3, 4)),
    }
    like = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in results.items()}
    compiled: Any = jax.jit(lambda x: bench.apply(callback, lambda _: results, x, like))
    anomalies: list[Anomaly] = []
    for _ in range(ROUNDS):
        found = compiled(bench.operand)
        for name, each in results.items():
            anomalies += check_value(f"a result {name}", lambda f=found[name]: f, np.array(each))  # type: ignore[misc]
    return anomalies[:3] + check_quiet_barrier(bench, "after several results of other layouts")


@planted("jit", "call pure_callback io_callback io_callback_ordered dlpack_callback", "H3 X2 X3 D1")
def large_strided_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Results of 4 MiB that are not row-major, which another way of copying would take for what they are not."""
    square = np.arange(LARGE_SIDE**2, dtype=np.float32).reshape(LARGE_SIDE, LARGE_SIDE)
    like = jax.ShapeDtypeStruct(square.shape, square.dtype)
    anomalies: list[Anomaly] = []
    for name, result in (
        ("transposed", square.T),
        ("backwards", square[::-1]),
        ("broadcast", square[:1] + 0 * square.T),
    ):
        run = jax.jit(lambda x, r=result: bench.apply(callback, lambda _: r, x, like))
        if not np.array_equal(np.asarray(run(bench.operand)), result):
            anomalies.append(Anomaly("result", Stage.RESULT, f"a large result {name} has other elements"))
    return anomalies + check_quiet_barrier(bench, "after large results of other layouts")


@planted("jit", "call dlpack_callback", "H3 D1")
def other_byte_order(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A result in the byte order of other machines has the same numbers; JAX's own callbacks refuse it."""
    anomalies: list[Anomaly] = []
    for dtype in (np.float32, np.int32, np.uint16, np.complex64):
        numbers = np.arange(1, 7).astype(dtype)
        turned = numbers.astype(numbers.dtype.newbyteorder())
        like = jax.ShapeDtypeStruct(numbers.shape, numbers.dtype)
        program = jax.jit(lambda x, t=turned, like=like: bench.apply(callback, lambda _: t, x, like))
        anomalies += check_value(f"{turned.dtype}", lambda p=program: p(bench.operand), numbers)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after results of the other byte order")


@planted("jit", "call pure_callback io_callback io_callback_ordered dlpack_callback", also="X2 X3")
@planted("pjit", "call")
def row_for_a_column(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A result of the right size and another shape is refused, alone and in a tree, and none is stretched to fit."""
    size = bench.operand.size
    shapes = {
        "a row for a column": ((1, size), (size, 1)),
        "an axis more": ((1, size), (size,)),
        "a number": ((), (size,)),
        "one element for many": ((1,), (size,)),
    }
    anomalies: list[Anomaly] = []
    for what, (returned, asked) in shapes.items():
        for tree in (False, True):

            def host(operand: Any, returned: tuple[int, ...] = returned, tree: bool = tree) -> Any:
                result = np.zeros(returned, np.float32)
                return (result, np.float32(0)) if tree else result

            like = jax.ShapeDtypeStruct(asked, np.float32)
            wanted = (like, jax.ShapeDtypeStruct((), np.float32)) if tree else like

            def computation(x: Any, host: Any = host, wanted: Any = wanted) -> Any:
                return jax.tree.leaves(bench.apply(callback, host, x, wanted))[0].sum() + x

            error = error_of(lambda f=computation: bench.compile(f)(bench.operand))  # type: ignore[misc]
            error_of(bench.implementation.barrier)
            if error is None:
                witness = f"{what}{' in a tree' if tree else ''} was delivered as a result"
                anomalies.append(Anomaly("swallowed error", Stage.RESULT, witness))
    return anomalies + check_quiet_barrier(bench, "after results of another shape")


@planted("jit", "dlpack_callback", "B3 D1")
def returns_its_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function returns its operands the other way round, with and without aliases: all of them are as they were."""
    like = jax.ShapeDtypeStruct((3,), np.float32)
    first, second = np.arange(3, dtype=np.float32), np.arange(10, 13, dtype=np.float32)
    anomalies: list[Anomaly] = []
    for label, aliases in (("without aliases", None), ("with aliases", {0: 0, 1: 1})):
        for kind, function in (
            ("as they are", lambda a, b: (b, a)),
            ("as arrays", lambda a, b: (np.asarray(b), np.asarray(a))),
            ("as parts", lambda a, b: (np.asarray(b)[::-1], np.asarray(a)[::-1])),
        ):
            turned = library(bench).dlpack_callback(function, (like, like), input_output_aliases=aliases)
            found = jax.block_until_ready(jax.jit(lambda a, b, f=turned: f(a + 0, b + 0))(first, second))
            step = -1 if kind == "as parts" else 1
            for number, wanted in enumerate((second[::step], first[::step])):
                what = f"{label}, {kind}: result {number}"
                anomalies += check_value(what, lambda f=found, n=number: f[n], wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after operands that were returned")
