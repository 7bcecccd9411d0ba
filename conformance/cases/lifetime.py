"""Fault cells of lifetimes: operands live as long as a callback keeps them, functions no longer than programs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import PATIENCE
from .harness.bench import WIDTH, Bench
from .harness.checks import check_quiet_barrier, check_value, error_of, still_alive
from .harness.registry import EVERY_KIND, OF_ARRAYS, OF_ARRAYS_OF_JAX, WITH_SIDE_EFFECT, planted

CALLS = 10
LARGE = 1 << 18
"""This many float32 are 1 MiB: from this size on, a library may lend memory that it reuses."""

PARTS = 512
"""An operand of so many times the usual one is no small piece of memory, and is given back at once."""

LARGE_CALLS = 6


@planted("jit", "id_tap call", "H11")
@planted("jit", OF_ARRAYS_OF_JAX, also="H11")
def keeps_its_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The operand of a callback does not change, whichever programs run later."""
    kept: list[Any] = []

    def keep(operand: Any) -> Any:
        kept.append(np.asarray(operand))
        return np.asarray(operand + np.float32(1))

    compiled = bench.applying(callback, keep)
    operands = [bench.operand + np.float32(10 * run) for run in range(CALLS)]
    for operand in operands:
        np.asarray(compiled(operand))
    bench.implementation.barrier()
    gc.collect()
    noise = [np.asarray(bench.compile(lambda x: x * 2)(operand)) for operand in operands]
    del noise
    return [
        Anomaly("torn operand", Stage.CALLBACK, f"run {run} was given {operand.tolist()}, kept {array.tolist()}")
        for run, (operand, array) in enumerate(zip(operands, kept, strict=True))
        if not np.array_equal(operand, array)
    ]


@planted("pjit", "debug_callback debug_callback_partitioned", "H11 X4", minimum_devices=2)
def keeps_its_parts(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback on each device changes its part of an operand, and keeps it; no later program changes it."""
    kept: list[tuple[Any, Any]] = []

    def keep(operand: Any) -> None:
        part = np.asarray(operand)
        if isinstance(operand, np.ndarray):
            # An array of JAX cannot be changed.
            part += 1
        kept.append((part, part.copy()))

    def computation(x: Any) -> Any:
        # No argument and no result: memory of the program, which belongs to others when it has ended.
        between = jnp.tile(x, PARTS) * 3
        bench.apply(callback, keep, between)
        return between.sum() + x

    compiled = bench.compile(computation)
    for run in range(CALLS):
        jax.block_until_ready(compiled(bench.operand + np.float32(10 * run)))
    anomalies = check_quiet_barrier(bench, "after callbacks that change their arrays")
    gc.collect()
    if len(kept) < CALLS:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"{CALLS} programs ran, and {len(kept)} callbacks"))
    torn = next(((part, copy) for part, copy in kept if not np.array_equal(part, copy)), None)
    if torn:
        witness = f"a callback was given {torn[1][:4]}..., and kept {torn[0][:4]}..."
        anomalies.append(Anomaly("torn operand", Stage.CALLBACK, witness))
    return anomalies


@planted("jit pjit", "id_tap call", "H11")
@planted("jit", OF_ARRAYS_OF_JAX, also="H11")
def changes_its_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback can change the NumPy array that it is given, in jit and outside, and no other code sees the change."""
    read_only: list[bool] = []

    def change(operand: Any) -> Any:
        result = np.asarray(operand + np.float32(1))
        array = np.asarray(operand)
        if array.flags.writeable:
            array[...] = -1
        # An array of JAX cannot be changed.
        read_only.append(isinstance(operand, np.ndarray) and not array.flags.writeable)
        return result

    def computation(x: Any) -> Any:
        result = bench.apply(callback, change, x)
        return result + 2 * x

    compiled = bench.compile(computation)
    on_device = jax.numpy.asarray(bench.operand)
    wanted = bench.expected(callback, bench.operand) + 2 * bench.operand
    anomalies = check_value("the computation", lambda: compiled(on_device), wanted)
    anomalies += check_value("the computation again", lambda: compiled(on_device), wanted)
    anomalies += check_value("outside jit", lambda: computation(on_device), wanted)
    bench.implementation.barrier()
    if any(read_only):
        anomalies.append(Anomaly("read-only operand", Stage.CALLBACK, f"which of the arrays are so: {read_only}"))
    return anomalies + check_value("the operand", lambda: on_device, bench.operand)


_WAYS_TO_KEEP: tuple[Callable[[Any], Any], ...] = (
    lambda array: array,
    # A view keeps the memory of an array, too, after the array itself is gone.
    lambda array: array[5:],
    lambda array: array.reshape(2, -1).T,
    lambda array: memoryview(array),
)


@planted("jit", OF_ARRAYS, "H11")
# JAX's own callbacks hang here: see fault.reads_large_operand.
@planted("pmap pjit shard_map", "id_tap call", "H11")
def keeps_large_operands(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As `keeps_its_operand` for operands of 1 MiB, several of them in a tree, and for views of them."""
    kept: list[tuple[float, Any]] = []

    def keep(operand: Any) -> Any:
        first, (second, small) = operand["first"], operand["others"]
        number = float(np.asarray(small).ravel()[0])
        way = _WAYS_TO_KEEP[int(number) % len(_WAYS_TO_KEEP)]
        kept.append((number, way(np.asarray(first))))
        kept.append((-number, way(np.asarray(second))))
        return np.asarray(small) + np.float32(1)

    def computation(x: Any) -> Any:
        first = x.ravel()[0]
        # No two arrays of the tree are alike.
        operand = {"first": jnp.full(LARGE, first), "others": (jnp.full(LARGE + 2 * WIDTH, -first), x)}
        result = bench.apply(callback, keep, operand, jax.ShapeDtypeStruct(jnp.shape(x), np.float32))
        return result if callback.returns_new_value else result["others"][1]

    compiled = bench.compile(computation)
    for run in range(LARGE_CALLS):
        # Release some operands, so that their memory is reused while others are kept.
        del kept[1 :: LARGE_CALLS - 1]
        operand = bench.operand + np.float32(1 + 100 * run)
        if not np.array_equal(compiled(operand), bench.expected(callback, operand)):
            return [Anomaly("result", Stage.RESULT, f"run {run} of large operands gave a wrong result")]
    anomalies = check_quiet_barrier(bench, "after large operands")
    if len(kept) < LARGE_CALLS:
        return [*anomalies, Anomaly("lost", Stage.CALLBACK, f"{len(kept)} operands were kept")]
    for number, view in kept:
        array = np.asarray(view)
        wrong = array[array != number]
        if wrong.size:
            witness = f"of the operand {number} that was kept {wrong.size} elements are something else, as {wrong[0]}"
            return [*anomalies, Anomaly("torn operand", Stage.CALLBACK, witness)]
    return anomalies


class _Host:
    """A function to which a weak reference shows that it is gone."""

    def __call__(self, operand: Any) -> Any:
        return np.asarray(operand)


class _HoldingHost(_Host):
    def __init__(self, held: Any) -> None:
        self.held = held


def _in_a_loop(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    # In a shard_map, the type of a result of JAX's own callback is replicated, and the carry's type is not.
    return lambda x: jax.lax.fori_loop(0, 2, lambda _, carry: function(carry) + 0 * carry, x)


def _in_a_branch(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.lax.cond(x.ravel()[0] >= 0, lambda x: function(x) + 0 * x, lambda x: x, x)


def _in_a_program(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(function)


_AROUND: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "alone": lambda function: function,
    "in a loop": _in_a_loop,
    "in a cond": _in_a_branch,
    "in a jitted function": _in_a_program,
}


@planted("jit", f"{EVERY_KIND} debug_callback_ordered {WITH_SIDE_EFFECT}", "H18")
@planted("pmap shard_map", "id_tap call io_callback", "H18")
def is_forgotten(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function is gone when its program is gone; caches are cleared only if JAX itself keeps the function."""

    def run(around: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> weakref.ref[_Host]:
        host = _Host()
        compiled = bench.compile(around(lambda x: bench.apply(callback, host, x)))
        np.asarray(compiled(bench.operand))
        return weakref.ref(host)

    kept = {label: run(around) for label, around in _AROUND.items()}
    error_of(bench.implementation.barrier)
    # JAX keeps every function that it has mapped, with or without callbacks.
    alive = still_alive(kept, jax.clear_caches if bench.layout == "pmap" else lambda: None)
    witness = f"the program is gone, and the function that it called {', '.join(alive)} is still alive"
    return [Anomaly("leak", Stage.EXIT, witness)] * bool(alive)


MANY = 5


@planted("jit", f"{EVERY_KIND} debug_callback_ordered", "H18")
@planted("pjit shard_map", "call", "H18")
def many_are_forgotten(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Jitted functions that are made, run and dropped, again and again: neither functions nor arrays add up."""
    held = np.zeros(LARGE, np.int8)

    def run() -> weakref.ref[_Host]:
        # A function often holds data, which a leak of the function keeps as well.
        host = _HoldingHost(held.copy())
        np.asarray(bench.applying(callback, host)(bench.operand))
        return weakref.ref(host)

    references = {str(number): run() for number in range(MANY)}
    error_of(bench.implementation.barrier)
    alive = still_alive(references)
    if not alive:
        return check_quiet_barrier(bench, "after many programs")
    return [Anomaly("leak", Stage.EXIT, f"{len(alive)} of {MANY} functions are alive that nobody has")]


@planted("jit", "id_tap", "H12 H18", functions="barrier_wait")
def forgotten_after_its_last_values(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program is dropped while its values wait for another's tap: its function runs for them, and then it is gone."""
    goes_on = threading.Event()
    ran: list[int] = []

    class Host:
        def __call__(self, operand: Any) -> None:
            ran.append(1)

    def hold(operand: Any) -> None:
        goes_on.wait(2 * PATIENCE)

    holding = bench.applying(callback, hold)

    def run() -> weakref.ref[Host]:
        host = Host()
        compiled = bench.applying(callback, host)
        # The first runs may take another way into the queue than the later ones.
        for program in (holding, holding, compiled, compiled):
            np.asarray(program(bench.operand))
        bench.implementation.barrier()
        ran.clear()
        goes_on.clear()
        for program in (holding, *(compiled,) * CALLS):
            np.asarray(program(bench.operand))
        return weakref.ref(host)

    goes_on.set()
    try:
        reference = run()
        gc.collect()
    finally:
        goes_on.set()
    anomalies = check_quiet_barrier(bench, "after a program that has been dropped")
    if len(ran) != CALLS:
        anomalies.append(Anomaly("lost", Stage.CALLBACK, f"{len(ran)} taps ran for {CALLS} values"))
    if still_alive({"the function": reference}):
        witness = "the program is gone, its last values have run, and its function is still alive"
        anomalies.append(Anomaly("leak", Stage.EXIT, witness))
    return anomalies


def _derived(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(lambda x: function(x * x).sum())


def _derived_again(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    # The backward pass runs the function again.
    return jax.grad(lambda x: jnp.sin(jax.checkpoint(lambda x: jnp.sin(function(x)))(x)).sum())


_TRANSFORMED: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "differentiated": _derived,
    "differentiated, and run again": _derived_again,
    "in lanes": jax.vmap,
    "differentiated in lanes": lambda function: jax.vmap(_derived(function)),
}


# JAX itself may keep the functions of its own callbacks.
@planted("jit", "id_tap debug_callback", "H18", functions="barrier_wait")
def transformed_are_forgotten(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function is gone with all that was made of its jitted function, by derivatives and by lanes as well."""

    def run(transform: Callable[[Callable[[Any], Any]], Callable[[Any], Any]], jitted: bool) -> weakref.ref[_Host]:
        host = _Host()
        inner = jax.jit(lambda x: bench.apply(callback, host, x) * 2)
        program = transform(inner)
        np.asarray((jax.jit(program) if jitted else program)(jnp.asarray(bench.operand)))
        np.asarray(inner(jnp.asarray(bench.operand)))
        return weakref.ref(host)

    kept = {
        f"{what}, {'in' if jitted else 'outside'} jit": run(transform, jitted)
        for what, transform in _TRANSFORMED.items()
        for jitted in ((True,) if what == "differentiated, and run again" else (False, True))
    }
    error_of(bench.implementation.barrier)
    alive = still_alive(kept)
    witness = f"the programs are gone, and functions that they called are still alive: {', '.join(alive)}"
    return [Anomaly("leak", Stage.EXIT, witness)] * bool(alive)


@planted("pmap", "id_tap", "H12 H18", minimum_devices=2, isolated=True)
def dropped_while_one_waits(bench: Bench, callback: Callback) -> list[Anomaly]:
    """All wait when their program is dropped; then the values of one device run after those of all others."""
    first, last, others_ran = threading.Event(), threading.Event(), threading.Semaphore(0)
    seen: list[str] = []

    def host(operand: Any, transforms: Any, device: Any) -> None:
        (last if device == bench.devices[-1] else first).wait(2 * PATIENCE)
        seen.append(str(device))
        if device != bench.devices[-1]:
            others_ran.release()

    def run(compiled: Callable[[Any], Any], times: int) -> None:
        for _ in range(times):
            jax.block_until_ready(compiled(bench.operand))

    compiled = bench.compile(lambda x: bench.implementation.namespace.id_tap(host, x, tap_with_device=True))  # type: ignore[attr-defined]
    first.set()
    last.set()
    # The first runs may take another way into the queues than the later ones.
    run(compiled, 2)
    bench.implementation.barrier()
    while others_ran.acquire(blocking=False):
        pass
    seen.clear()
    first.clear()
    last.clear()
    try:
        run(compiled, CALLS)
        del compiled
        jax.clear_caches()
        gc.collect()
        first.set()
        ran = all(others_ran.acquire(timeout=PATIENCE) for _ in range(CALLS * (len(bench.devices) - 1)))
    finally:
        first.set()
        last.set()
    anomalies = check_quiet_barrier(bench, "after a program that has been dropped")
    wanted = sorted(str(device) for device in bench.devices for _ in range(CALLS))
    if not ran or sorted(seen) != wanted:
        counts = {str(device): seen.count(str(device)) for device in bench.devices}
        witness = f"of {CALLS} runs the taps of each device: {counts}"
        anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
    return anomalies
