"""Fault cells of data: programs use small arrays of float32, and these whatever else an operand may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.bench import Bench
from conformance.checkers import Anomaly
from conformance.execution import summary
from conformance.fault_checks import check_quiet_barrier
from conformance.stages import stage_of
from conformance.verdicts import Stage

DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float8_e4m3fn", "float32", "complex64"),
)
"""What there is without 64 bits on every platform."""

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (0,), (2, 0, 3), (2, 3, 4), (1, 1, 1, 1, 1), (300, 200))


def _of_each_dtype() -> Iterable[Any]:
    # Numbers that no narrower type has, where the type has them.
    big = {"int32": 2**31 - 1, "uint32": 2**32 - 1, "uint16": 2**16 - 1, "complex64": 1.5 - 2.5j}
    for name in DTYPES:
        yield np.array([[0, 1, 3], [big.get(name, 1), 1, 0]]).astype(jnp.dtype(name))


def _of_each_shape() -> Iterable[Any]:
    for shape in SHAPES:
        yield np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _of_each_tree() -> Iterable[Any]:
    one, two, three = (np.full(2, number, np.float32) for number in (1, 2, 3))
    yield (one, two)
    yield [one, two, three]
    yield {"b": one, "a": two}
    yield {"outer": {"inner": (one, [two])}, "none": None, "other": three}


def _tap(bench: Bench, operand: Any) -> tuple[Any, Any]:
    """What a tap sees of the operand, and what it gives back."""
    seen: list[Any] = []
    result = jax.jit(lambda x: bench.implementation.tap(lambda value, _: seen.append(value), x))(operand)
    bench.implementation.barrier()
    return seen[0] if seen else "nothing", result


def _call(bench: Bench, operand: Any) -> tuple[Any, Any]:
    seen: list[Any] = []

    def host(value: Any) -> Any:
        seen.append(value)
        return value

    wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), operand)
    result = jax.block_until_ready(jax.jit(lambda x: bench.implementation.call(host, x, wanted))(operand))
    return seen[0] if seen else "nothing", result


def _same(left: Any, right: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (left, right)]
    if structures[0] != structures[1]:
        return False
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    arrays = ((np.asarray(mine), np.asarray(other)) for mine, other in pairs)
    return all((a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in arrays)


def _scenario(
    operands: Callable[[], Iterable[Any]], through: Callable[[Bench, Any], tuple[Any, Any]]
) -> Callable[[Bench], list[Anomaly]]:
    def scenario(bench: Bench) -> list[Anomaly]:
        anomalies = []
        for operand in operands():
            try:
                seen, result = through(bench, operand)
            except Exception as error:
                anomalies.append(Anomaly("error", stage_of(error), f"with {_short(operand)}: {summary(error)}"))
                continue
            if not _same(seen, operand):
                witness = f"the callback saw {_short(seen)}, expected {_short(operand)}"
                anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
            if not _same(result, operand):
                witness = f"the result is {_short(result)}, expected {_short(operand)}"
                anomalies.append(Anomaly("result", Stage.RESULT, witness))
        return anomalies + check_quiet_barrier(bench, "after callbacks of all kinds of data")

    return scenario


def _short(value: Any) -> str:
    return " ".join(repr(value).split())[:200]


DATA_SCENARIOS: dict[tuple[str, str], Callable[[Bench], list[Anomaly]]] = {
    (callback, kind): _scenario(operands, through)
    for callback, through in (("id_tap", _tap), ("call", _call))
    for kind, operands in (("dtypes", _of_each_dtype), ("shapes", _of_each_shape), ("trees", _of_each_tree))
}
