"""Fault cells of data: other cells mostly use small float32 arrays, these cells use all other operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Batching, Callback, Runs
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import OF_ARRAYS, planted

DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float8_e4m3fn", "float32", "complex64"),
)
"""The dtypes of every platform without 64 bits."""

NARROW: dict[str, tuple[float, ...]] = {
    "int2": tuple(range(-2, 2)),
    "uint2": tuple(range(4)),
    "int4": tuple(range(-8, 8)),
    "uint4": tuple(range(16)),
    "float4_e2m1fn": (-6, -4, -3, -2, -1.5, -1, -0.5, -0.0, 0, 0.5, 1, 1.5, 2, 3, 4, 6),
    "float8_e4m3fn": (-448, -1.5, -(2**-9), -0.0, 2**-9, 448),
    "float8_e5m2": (-57344, -1.5, -(2**-16), -0.0, 2**-16, 57344),
    "int8": (-128, -1, 127),
    "uint8": (0, 128, 255),
}
"""Types of a byte and less: all their values, or the extremes."""

BATCHED = "id_tap call call_sequential pure_callback_sequential io_callback debug_callback"

KEY_WORDS = 2
"""The number of words in a key of JAX's default generator."""

TRIPS = 3

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (0,), (2, 0, 3), (2, 3, 4), (1, 1, 1, 1, 1), (300, 200))


def _of_each_dtype() -> Iterable[Any]:
    # Numbers that only this type, and no narrower type, can hold, if there are any.
    big = {"int32": 2**31 - 1, "uint32": 2**32 - 1, "uint16": 2**16 - 1, "complex64": 1.5 - 2.5j}
    for name in DTYPES:
        yield np.array([[0, 1, 3], [big.get(name, 1), 1, 0]]).astype(jnp.dtype(name))


def _of_each_narrow_dtype() -> Iterable[Any]:
    for name, numbers in NARROW.items():
        # Older releases have fewer of them.
        if hasattr(jnp, name):
            yield np.array(numbers, np.float32).astype(jnp.dtype(name))


def _of_each_shape() -> Iterable[Any]:
    for shape in SHAPES:
        yield np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _of_each_tree() -> Iterable[Any]:
    one, two, three = (np.full(2, number, np.float32) for number in (1, 2, 3))
    yield (one, two)
    yield [one, two, three]
    yield {"b": one, "a": two}
    yield {"outer": {"inner": (one, [two])}, "none": None, "other": three}


def _through(bench: Bench, callback: Callback, operand: Any) -> tuple[Any, Any]:
    """The operand that a callback gets, and its result."""
    seen: list[Any] = []

    def host(value: Any) -> Any:
        seen.append(jax.tree.map(np.asarray, value))
        return seen[-1]

    wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), operand)
    result = jax.block_until_ready(jax.jit(lambda x: bench.apply(callback, host, x, wanted))(operand))
    bench.implementation.barrier()
    return seen[0] if seen else "nothing", result


def _same(left: Any, right: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (left, right)]
    if structures[0] != structures[1]:
        return False
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(_content(mine) == _content(other) for mine, other in pairs)


def _content(leaf: Any) -> tuple[Any, ...]:
    array = np.asarray(leaf)
    # A type narrower than a byte does not use all bits of its byte; the unused bits may have any value.
    values = array.astype(np.float32) if array.dtype.name in NARROW else array
    return array.dtype, array.shape, values.tobytes()


def _scenario(operands: Callable[[], Iterable[Any]]) -> Callable[[Bench, Callback], list[Anomaly]]:
    def scenario(bench: Bench, callback: Callback) -> list[Anomaly]:
        anomalies = []
        for operand in operands():
            try:
                seen, result = _through(bench, callback, operand)
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


@planted("jit", BATCHED, "H1 H3 X2 X3 X4")
def typed_keys(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Typed keys as operands: an argument of the program, in a tree, in a vmap's batch, and in a loop's carry."""
    seen: list[tuple[int, ...]] = []

    def host(operand: Any) -> Any:
        for leaf in jax.tree.leaves(operand):
            words = _words(leaf)
            if words.dtype == np.uint32:
                seen.extend(tuple(row) for row in words.reshape(-1, KEY_WORDS).tolist())
        return np.float32(1)

    one = jax.ShapeDtypeStruct((), np.float32)

    def apply(operand: Any) -> Any:
        result = bench.apply(callback, host, operand, one)
        return result if callback.returns_new_value else np.float32(1)

    def looped(key: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (jax.random.fold_in(carry, 1), apply(carry)), key, None, length=TRIPS)[1]

    key, keys = jax.random.key(7), jax.random.split(jax.random.key(8), TRIPS)
    chain = [key]
    for _ in range(TRIPS - 1):
        chain.append(jax.random.fold_in(chain[-1], 1))
    programs: dict[str, tuple[Callable[[Any], Any], Any, Iterable[Any]]] = {
        "as an argument": (apply, key, [key]),
        "several in an array": (apply, keys, keys),
        "in a tree": (lambda key: apply({"number": np.float32(2), "key": (key, key)}), key, [key, key]),
        "in the carry of a scan": (looped, key, chain),
        "made by the program": (lambda seed: apply(jax.random.key(seed)), np.uint32(7), [key]),
    }
    if callback.batching is not Batching.REFUSED:
        programs["in a batch"] = (jax.vmap(apply), keys, keys)
    anomalies = []
    for label, (function, argument, wanted) in programs.items():
        seen.clear()
        try:
            results = np.asarray(jax.jit(function)(argument))
            bench.implementation.barrier()
        except Exception as error:
            anomalies.append(Anomaly("error", stage_of(error), f"a key {label}: {summary(error)}"))
            continue
        words = sorted(tuple(_words(each).tolist()) for each in wanted)
        # A pure callback may run once more.
        found = sorted(seen) if callback.runs is Runs.ONCE else sorted({*seen})
        if found != (words if callback.runs is Runs.ONCE else sorted({*words})):
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, f"a key {label} is {found}, expected {words}"))
        if not (results == 1).all():
            anomalies.append(Anomaly("result", Stage.RESULT, f"with a key {label} the results are {results}"))
    return anomalies


def _words(leaf: Any) -> Any:
    """The words of a key; an implementation may pass the key itself or these words."""
    typed = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed else leaf)


for _kind, _operands in {"dtypes": _of_each_dtype, "shapes": _of_each_shape, "trees": _of_each_tree}.items():
    planted("jit", "id_tap", "H1", kind=_kind)(_scenario(_operands))
    planted("jit", "call", "H3", kind=_kind)(_scenario(_operands))
planted("jit", OF_ARRAYS, kind="narrow_dtypes")(_scenario(_of_each_narrow_dtype))
planted("jit", "dlpack_callback dlpack_callback_in_place", "D1", kind="dtypes")(_scenario(_of_each_dtype))
