"""Fault cells of results in the memory layouts and byte orders that NumPy's functions return, and of wrong shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
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


@planted("jit", "call dlpack_callback", "H15 D1")
def other_keys(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A dict with another key than the one that was asked for is refused, although it has as many arrays."""

    def host(operand: Any) -> Any:
        array = np.asarray(operand)
        return {"first": array, "third": array}

    like = jax.ShapeDtypeStruct(bench.operand.shape, np.float32)
    program = jax.jit(lambda x: bench.apply(callback, host, x, {"first": like, "second": like})["second"])
    error = error_of(lambda: jax.block_until_ready(program(bench.operand)))
    error_of(bench.implementation.barrier)
    anomalies = check_quiet_barrier(bench, "after a result with another key")
    if error is None:
        return [*anomalies, Anomaly("swallowed error", Stage.RESULT, "a result with another key was delivered")]
    if "third" not in str(error) or "second" not in str(error):
        witness = f"the error must name the key that came and the one that was asked for: {summary(error)}"
        anomalies.append(Anomaly("poor error", Stage.RESULT, witness))
    return anomalies


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


@planted("jit", "dlpack_callback", "D1")
def results_like_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function that makes the results' types from the operands' gets these as they are, of each type."""
    operands: dict[str, Any] = {
        "numbers": np.arange(3, dtype=np.int32),
        "small": np.arange(4, dtype=np.uint8),
        "halves": np.arange(5, dtype=np.float16),
        "bfloats": jnp.arange(6, dtype=jnp.bfloat16),
    }
    asked: list[Any] = []

    def like(operands: Any, *, python: Any) -> Any:
        asked.append({name: (each.shape, each.dtype.name) for name, each in operands.items()})
        return dict(operands, python=python)

    def copied(operands: Any, *, python: Any) -> Any:
        return {name: np.array(each) for name, each in dict(operands, python=python).items()}

    def through(operands: Any) -> Any:
        return library(bench).dlpack_callback(copied, like)(operands, python=3)

    anomalies: list[Anomaly] = []
    for way, run in (("outside jit", through), ("in jit", jax.jit(through))):
        try:
            found = jax.block_until_ready(run(operands))
        except Exception as error:
            anomalies.append(Anomaly("error", stage_of(error), f"{way}: {summary(error)}"))
            continue
        for name, operand in {**operands, "python": np.int32(3)}.items():
            anomalies += check_value(f"{name} {way}", lambda f=found[name]: f, np.asarray(operand))  # type: ignore[misc]
    wanted = {name: (each.shape, each.dtype.name) for name, each in operands.items()}
    if asked != [wanted] * 2:
        anomalies.append(Anomaly("wrong operand", Stage.TRACE, f"it was asked about {asked}, expected {wanted}"))
    return anomalies + check_quiet_barrier(bench, "after results like operands")


@planted("jit", "dlpack_callback", "B3 D1")
def aliases_by_number(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The numbers of an alias are those of an operand and of a result, and count operands without a value as well."""
    short, long = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)
    likes = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (short, long))
    without_value = np.zeros(2, jax.dtypes.float0)

    def last(*operands: Any) -> Any:
        return np.asarray(operands[-1]) + np.float32(1)

    def both(first: Any, second: Any) -> Any:
        return np.asarray(first) + np.float32(1), np.asarray(second) + np.float32(1)

    function = library(bench).dlpack_callback
    cases: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
        "the second operand": (function(last, likes[1], input_output_aliases={1: 0}), (short, long), (long + 1,)),
        "the second result": (function(both, likes, input_output_aliases={1: 1}), (short, long), (short + 1, long + 1)),
        "results the other way round": (
            function(lambda a, b: both(b, a), likes[::-1], input_output_aliases={0: 1, 1: 0}),
            (short, long),
            (long + 1, short + 1),
        ),
        "an operand after one without a value": (
            function(last, likes[1], input_output_aliases={1: 0}),
            (without_value, long),
            (long + 1,),
        ),
    }
    anomalies: list[Anomaly] = []
    for what, (aliased, operands, wanted) in cases.items():

        def program(long: Any, aliased: Any = aliased, first: Any = operands[0]) -> Any:
            # Both are made by the program, which may then write over them.
            return jax.tree.leaves(aliased(first if first is without_value else first + 0, long + 0))

        found = jax.block_until_ready(jax.jit(program)(operands[1]))
        for number, due in enumerate(wanted):
            anomalies += check_value(f"{what}: result {number}", lambda f=found, n=number: f[n], due)  # type: ignore[misc]
    sharing = function(last, likes[1], input_output_aliases={1: 0}, vmap_method="expand_dims")
    lanes = jax.vmap(lambda short, long: sharing(short, long + 0), in_axes=(0, None))
    alike = np.stack([long, long + 1])
    wanted_of_lanes = np.stack([long + 1, long + 1])
    anomalies += check_value("an operand that all lanes share", lambda: jax.jit(lanes)(alike, long), wanted_of_lanes)
    shares: list[list[bool]] = []

    def add_one(context: Any, out: Any, *operands: Any) -> None:
        arrays = [(np.asarray(one), np.asarray(other)) for one, other in zip(out, operands, strict=True)]
        shares.append([np.shares_memory(*pair) for pair in arrays])
        for result, operand in arrays:
            np.add(operand, 1, out=result)

    of_aliases: list[dict[int, int]] = [{0: 0, 1: 1}, {}, {0: 0}, {1: 1}]
    for aliases in (of_aliases, of_aliases[::-1]):

        def one_by_one(short: Any, long: Any, aliases: Any = aliases) -> Any:
            for each in aliases:
                # One function, on operands and results of the same types.
                add = library(bench).buffer_callback(add_one, likes, input_output_aliases=each)
                short, long = add(short * 2, long * 2)
            return short, long

        shares.clear()
        jax.block_until_ready(jax.jit(one_by_one)(short, long))
        due = [[number in each for number in (0, 1)] for each in aliases]
        if shares != due:
            witness = f"with the aliases {aliases} operands share memory with results: {shares}, expected {due}"
            anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after aliases")
