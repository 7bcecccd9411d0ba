"""Fault cells of reported bugs: small programs from public reports about JAX's callbacks.

Each docstring has the number of the report; a number without a project is one of JAX.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.external_callbacks import callback_named
from .compiler import Counting
from .harness.bench import WIDTH, Bench
from .harness.checks import check_quiet_barrier, check_value, error_of, still_alive
from .harness.registry import ONE_OF_EACH, WITH_EFFECTS, WITH_RESULTS, planted

TRIPS = 5


def _add_one(operand: Any) -> Any:
    return np.asarray(operand) + np.float32(1)


@planted("shard_map", "id_tap call io_callback_ordered")
def changing_device_sets(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#25671: a function with ordered callbacks runs on all devices, then on one, then on all again."""
    alone = Bench(bench.implementation, "jit", bench.devices)
    together, single = bench.applying(callback, _add_one), alone.applying(callback, _add_one)
    anomalies = []
    for label, where, program in (("all", bench, together), ("one", alone, single), ("all again", bench, together)):
        wanted = where.expected(callback, where.operand)
        anomalies += check_value(f"on {label}", lambda w=where, p=program: p(w.operand), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after programs on changing devices")


@planted("pmap", "call", "H9", minimum_devices=2, deadline=15.0, isolated=True)
@planted("pmap", "pure_callback", minimum_devices=2, deadline=15.0, isolated=True)
def reads_large_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """No public number: callbacks that read a large operand, before a collective, with more devices than cores."""
    compiled = bench.compile(lambda x: jax.lax.psum(bench.apply(callback, _add_one, x), "devices"))
    count = len(bench.devices)
    operand = np.ones((count, 1 << 16), np.float32)
    wanted = np.full(operand.shape, count * bench.expected(callback, np.float32(1)), np.float32)
    anomalies = []
    for _ in range(4 * TRIPS):
        anomalies += check_value("the sum", lambda: compiled(operand), wanted)
    return anomalies[:1]


@planted("jit", WITH_EFFECTS)
def loop_with_large_carry(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#25861: a while_loop with a large carry calls back in each step."""
    counting = Counting()

    def step(state: Any) -> Any:
        index, carry = state
        bench.apply(callback, counting, jnp.full(WIDTH, index, jnp.float32))
        return index + 1, carry * 1.5 + 1

    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda state: state[0] < TRIPS, step, (0, x))[1]

    compiled = jax.jit(loop)
    for _ in range(TRIPS):
        jax.block_until_ready(compiled(jnp.zeros((500, 500))))
    bench.implementation.barrier()
    wanted = {float(index): TRIPS for index in range(TRIPS)}
    return _check_calls(counting, wanted)


@planted("jit", f"{WITH_EFFECTS} io_callback")
def condition_with_frozen_carry(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#10577: the condition of a loop calls back, and a part of the carry never changes. The body may keep an order."""
    counting, of_body = Counting(), Counting()
    ordered = callback_named("debug_callback_ordered")

    def unfinished(state: Any) -> Any:
        first, _ = state
        bench.apply(callback, counting, jnp.full(WIDTH, first, jnp.float32))
        return first < TRIPS

    def loop(x: Any, in_order: bool = False) -> Any:
        def body(state: Any) -> Any:
            if in_order:
                bench.apply(ordered, of_body, jnp.full(WIDTH, state[0], jnp.float32))
            return state[0] + 1, state[1]

        return jax.lax.while_loop(unfinished, body, (jnp.float32(0), x))[1]

    anomalies: list[Anomaly] = []
    for in_order, in_body in ((False, 0), (True, TRIPS)):
        for each in (counting, of_body):
            each.calls.clear()
        compiled = jax.jit(functools.partial(loop, in_order=in_order))
        anomalies += check_value("the loop", lambda f=compiled: f(bench.operand), bench.operand)  # type: ignore[misc]
        bench.implementation.barrier()
        anomalies += _check_calls(counting, {float(index): 1 for index in range(TRIPS + 1)})
        anomalies += _check_calls(of_body, {float(index): 1 for index in range(in_body)})
    return anomalies


@planted("jit", "io_callback io_callback_ordered debug_callback id_tap", "H6 X3 X4")
def invariant_predicate(bench: Bench, callback: Callback) -> list[Anomaly]:
    """google/brax#634, liesel-devs/liesel#317: in a differentiated scan, behind a cond with one flag for all steps."""
    counting = Counting()

    def loss(x: Any, flag: Any) -> Any:
        def step(carry: Any, number: Any) -> Any:
            told = jnp.full(WIDTH, number, jnp.float32)
            jax.lax.cond(flag, lambda: (bench.apply(callback, counting, told), None)[1], lambda: None)
            return jnp.sin(carry), None

        return jax.lax.scan(step, x, jnp.arange(TRIPS))[0]

    jax.block_until_ready(jax.jit(jax.grad(loss))(np.float32(1), np.bool_(True)))
    bench.implementation.barrier()
    return _check_calls(counting, {float(number): 1 for number in range(TRIPS)})


def _check_calls(counting: Counting, wanted: dict[float, int]) -> list[Anomaly]:
    if dict(counting.calls) == wanted:
        return []
    witness = f"calls by number: {dict(sorted(counting.calls.items()))}, expected {wanted}"
    return [Anomaly("wrong count", Stage.CALLBACK, witness)]


@planted("jit", "pure_callback io_callback")
def python_number(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#20433: a Python number as a float32 result is converted or refused, and never becomes garbage."""
    wanted = jax.ShapeDtypeStruct((), np.float32)
    compiled = jax.jit(lambda x: bench.implementation.invoke(callback, lambda _: 42.0, x, wanted, bench.devices))
    error = error_of(lambda: compiled(bench.operand))
    if error is not None:
        # The barrier reports a refusal once more, and then it is over.
        error_of(bench.implementation.barrier)
        return []
    return check_value("the number", lambda: compiled(bench.operand), np.asarray(42, np.float32))


@planted("jit", "pure_callback io_callback")
def strided_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Results with other memory layouts than row-major."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    results: dict[str, Any] = {
        "in Fortran's order": np.asfortranarray(matrix),
        "transposed": np.ascontiguousarray(matrix.T).T,
        "backwards": np.ascontiguousarray(matrix[::-1, ::-1])[::-1, ::-1],
        "every other": np.repeat(matrix, 2, axis=1)[:, ::2],
        "broadcast": np.broadcast_to(matrix[0], (3, 4)),
    }
    like = jax.ShapeDtypeStruct(matrix.shape, np.float32)

    def returning(result: Any) -> Any:
        return jax.jit(lambda x: bench.implementation.invoke(callback, lambda _: result, x, like, bench.devices))

    anomalies = []
    for label, result in results.items():
        compiled = returning(result)
        anomalies += check_value(f"a result {label}", lambda c=compiled: c(bench.operand), np.array(result))  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after results of all layouts")


@planted("jit", WITH_EFFECTS)
def implicit_derivative(bench: Bench, callback: Callback) -> list[Anomaly]:
    """No public number: a solver wrapped in custom_root calls back, without differentiation."""
    counting = Counting()

    def solve(function: Any, start: Any) -> Any:
        bench.apply(callback, counting, jnp.zeros(WIDTH))
        return start - function(start)

    def root(x: Any) -> Any:
        return jax.lax.custom_root(lambda y: y - x, x, solve, lambda linear, right: right / linear(1.0))

    anomalies = check_value("the root", lambda: jax.jit(root)(np.float32(2)), np.asarray(2, np.float32))
    bench.implementation.barrier()
    return anomalies + _check_calls(counting, {0.0: 1})


@planted("jit", ONE_OF_EACH)
def eagerly_forgotten(bench: Bench, callback: Callback) -> list[Anomaly]:
    """No public number: after eager calls, a function is gone with its last reference, without clearing caches."""

    def run() -> weakref.ref[Any]:
        def host(operand: Any) -> Any:
            return _add_one(operand)

        np.asarray(bench.apply(callback, host, jnp.asarray(bench.operand)))
        return weakref.ref(host)

    kept = {str(number): run() for number in range(TRIPS)}
    bench.implementation.barrier()
    alive = still_alive(kept)
    if not alive:
        return []
    return [Anomaly("leak", Stage.EXIT, f"{len(alive)} of {TRIPS} functions are alive that nobody has")]


@planted("pmap", ONE_OF_EACH)
def dropped_while_running(bench: Bench, callback: Callback) -> list[Anomaly]:
    """JAX 0.4.18 and before: the user drops a function and its program before the result is ready."""
    results = []
    for _ in range(TRIPS):
        results.append(bench.applying(callback, functools.partial(_add_one))(bench.operand))
        # Collecting the young generations is enough; a full collection takes long.
        gc.collect(1)
    wanted = bench.expected(callback, bench.operand)
    anomalies = []
    for result in results:
        anomalies += check_value("a program that nobody has", lambda r=result: r, wanted)  # type: ignore[misc]
    return anomalies[:1] + check_quiet_barrier(bench, "after programs that were dropped")


@planted("pmap", ONE_OF_EACH)
def collects_garbage(bench: Bench, callback: Callback) -> list[Anomaly]:
    """JAX before 0.11 without the interpreter's lock: the garbage collector runs inside a callback."""

    def host(operand: Any) -> Any:
        cycle: list[Any] = [operand]
        cycle.append(cycle)
        del cycle
        gc.collect(0)
        return _add_one(operand)

    compiled = bench.applying(callback, host)
    wanted = bench.expected(callback, bench.operand)
    anomalies = [a for _ in range(TRIPS) for a in check_value("the program", lambda: compiled(bench.operand), wanted)]
    return anomalies[:1] + check_quiet_barrier(bench, "after collections of garbage")


@planted("jit", WITH_RESULTS)
def mapped(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#23854: `jax.lax.map` of a callback over rows."""
    rows = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
    compiled = jax.jit(lambda x: jax.lax.map(lambda row: bench.apply(callback, _add_one, row), x))
    return check_value("the map", lambda: compiled(rows), bench.expected(callback, rows))


@planted("jit", "id_tap io_callback debug_callback")
def shape_first(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#16732: `eval_shape` of a function, and then its execution: the first leaves no state for the second."""
    counting = Counting()

    def function(x: Any) -> Any:
        return bench.apply(callback, counting, x) * 1

    shape = jax.eval_shape(function, bench.operand)
    anomalies = check_value("the function", lambda: function(jnp.asarray(bench.operand)), bench.operand)
    bench.implementation.barrier()
    if shape.shape != bench.operand.shape:
        anomalies.append(Anomaly("result", Stage.TRACE, f"its shape was to be {shape.shape}"))
    return anomalies + _check_calls(counting, {0.0: 1})


# One device has no mesh.
@planted("pjit", WITH_RESULTS, minimum_devices=2, needs="set_mesh")
def explicit_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """No public number: on a mesh with explicit axes, a result has a sharding over that mesh."""
    mesh = jax.make_mesh(
        (len(bench.devices),), ("devices",), axis_types=(jax.sharding.AxisType.Explicit,), devices=bench.devices
    )
    with jax.set_mesh(mesh):
        operand = jax.device_put(bench.operand, NamedSharding(mesh, PartitionSpec()))
        result = jax.jit(lambda x: bench.apply(callback, _add_one, x))(operand)
        anomalies = check_value("the program", lambda: result, bench.expected(callback, bench.operand))
    if not isinstance(result.sharding, NamedSharding):
        anomalies.append(Anomaly("sharding", Stage.RESULT, f"the result's sharding is {result.sharding}"))
    return anomalies


@planted("jit pjit", f"{WITH_RESULTS} dlpack_callback")
def reuses_its_result(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As #37830: a function returns the same array each time, with new values; earlier results do not change."""
    mine = np.zeros(bench.callback_shape, np.float32)

    def host(operand: Any) -> Any:
        mine[...] = np.asarray(operand) + np.float32(1)
        return mine

    compiled = bench.applying(callback, host)
    operands = [bench.operand + np.float32(10 * number) for number in range(TRIPS)]
    results = [jax.block_until_ready(compiled(operand)) for operand in operands]
    anomalies = []
    for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
        wanted = bench.expected(callback, operand)
        anomalies += check_value(f"result {number} of {TRIPS}", lambda r=result: r, wanted)  # type: ignore[misc]
    return anomalies


@planted("jit", ONE_OF_EACH, needs="no_tracing")
def without_tracing(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#39289: a program that has run before runs again under `jax.no_tracing`, which forbids a new trace."""
    compiled = bench.applying(callback, _add_one)
    wanted = bench.expected(callback, bench.operand)
    anomalies = check_value("the program", lambda: compiled(bench.operand), wanted)
    with jax.no_tracing():
        return anomalies + check_value("the program under no_tracing", lambda: compiled(bench.operand), wanted)


@planted("jit", WITH_RESULTS)
def wide_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#12186: results of 64 bits without x64 are refused before anything runs, in words that name the setting."""
    wanted = jax.ShapeDtypeStruct((), np.int64)
    called: list[Any] = []

    def asking() -> Any:
        if callback.function == "call":
            return bench.implementation.call(called.append, np.int32(1), wanted)
        return bench.implementation.invoke(callback, called.append, np.int32(1), wanted, bench.devices)

    error = error_of(asking)
    if error is None or called:
        witness = f"int64[] {'was refused after the call' if error else 'was not refused'}"
        return [Anomaly("unchecked", Stage.TRACE, witness)]
    if "x64" not in str(error):
        return [Anomaly("message", Stage.TRACE, f"the refusal does not name x64: {error}")]
    return []


@planted("jit", "call")
def decomposes_on_the_host(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#26160: a callback runs JAX's eigendecomposition, which shares LAPACK threads and a pool with the program."""
    decompose = jax.jit(lambda matrix: jnp.linalg.eig(matrix)[0])

    def host(operand: Any) -> Any:
        eigenvalues = np.asarray(decompose(np.eye(150, dtype=np.float32)))
        return np.asarray(operand) + np.float32(eigenvalues.real.mean())

    compiled = bench.applying(callback, host)
    wanted = bench.expected(callback, bench.operand)
    anomalies = [a for _ in range(TRIPS) for a in check_value("the program", lambda: compiled(bench.operand), wanted)]
    return anomalies[:1]


@planted("jit", "debug_print", "X4")
def text_in_format(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#23600: a print mixes text and traced values."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        jax.jit(lambda x: bench.implementation.print_as("{a} {b}", a=x, b="text"))(np.float32(2))
        bench.implementation.barrier()
    if printed.getvalue() == "2.0 text\n":
        return []
    return [Anomaly("value", Stage.CALLBACK, f"printed {printed.getvalue()!r}, expected '2.0 text'")]


@planted("jit", "debug_print", "X4")
def malformed_format(bench: Bench, callback: Callback) -> list[Anomaly]:
    """#11725: a format that does not match its arguments is refused before anything runs."""
    compiled = jax.jit(lambda x: bench.implementation.print_as("{a} {b}", a=x))
    if error_of(lambda: compiled.lower(np.float32(2))) is None:
        return [Anomaly("unchecked", Stage.TRACE, "'{a} {b}' was accepted for `a` alone")]
    return []
