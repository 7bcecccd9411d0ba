"""Reports about callbacks on several devices, and about functions and programs that are dropped early."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...oracle.verdicts import Stage
from ..devices import meshes
from ..harness.case import Case, case
from ..harness.hosts import add_one, still_alive
from ..harness.registry import ONE_OF_EACH, WITH_RESULTS
from .loops_and_branches import TRIPS


@case("shard_map", "id_tap call io_callback_ordered")
def changing_device_sets(case: Case) -> None:
    """#25671: a function with ordered callbacks is right on all devices, then on one, then on all again."""
    alone = case.over(case.devices, "jit")
    together, single = (each.program(add_one) for each in (case, alone))
    for each, program in ((case, together), (alone, single), (case, together)):
        case.gives(each.expected, program, each.operand)


@case("pmap", "call", "H9", minimum_devices=2, deadline=8.0, isolated=True)
@case("pmap", "pure_callback", minimum_devices=2, deadline=8.0, isolated=True)
def reads_large_operand(case: Case) -> None:
    """No public number: callbacks that read a large operand before a collective end, and the sum is right.

    There are more devices than cores.
    """
    compiled = case.compile(lambda x: jax.lax.psum(case.apply(add_one, x), "devices"))
    count = len(case.devices)
    operand = np.ones((count, 1 << 16), np.float32)
    for _ in range(4 * TRIPS):
        case.gives(np.full(operand.shape, 2 * count, np.float32), compiled, operand)


@case("pmap", "call", "H9", minimum_devices=2, deadline=8.0, isolated=True)
@case("pmap", "pure_callback", minimum_devices=2, deadline=8.0, isolated=True)
def reads_small_type(case: Case) -> None:
    """No public number: callbacks of all devices read an operand of less than a byte at the same time, and end."""
    together = threading.Barrier(len(case.devices), timeout=1.0)

    def host(operand: Any) -> Any:
        # An implementation may run them one after the other.
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait()
        return np.asarray(operand)

    operand = np.ones((len(case.devices), 3), jnp.int4)
    case.gives(operand, case.program(host), operand)


@case("jit", "pure_callback io_callback debug_callback")
def eagerly_forgotten(case: Case) -> None:
    """No public number: after eager calls, a function is gone with its last reference, without clearing caches."""

    def run() -> weakref.ref[Any]:
        host = lambda operand: add_one(operand)
        np.asarray(case.apply(host, jnp.asarray(case.operand)))
        return weakref.ref(host)

    functions = {str(number): run() for number in range(TRIPS)}
    case.barrier()
    case.same("leak", Stage.EXIT, still_alive(functions), [], "functions that nobody has")


@case("pmap", ONE_OF_EACH)
def dropped_while_running(case: Case) -> None:
    """JAX 0.4.18 and before: a result is right, though its function and program were dropped before it was ready."""
    results = []
    for _ in range(TRIPS):
        results.append(case.program(functools.partial(add_one))(case.operand))
        # Collecting the young generations is enough; a full collection takes long.
        gc.collect(1)
    for result in results:
        case.gives(case.expected, np.asarray, result)


@case("pmap", ONE_OF_EACH)
def collects_garbage(case: Case) -> None:
    """JAX before 0.11 without the interpreter's lock: a callback ends in which the garbage collector runs."""

    def host(operand: Any) -> Any:
        cycle: list[Any] = [operand]
        cycle.append(cycle)
        del cycle
        gc.collect(0)
        return add_one(operand)

    compiled = case.program(host)
    for _ in range(TRIPS):
        case.gives(case.expected, compiled, case.operand)


# One device has no mesh.
@case("pjit", WITH_RESULTS, minimum_devices=2, needs="set_mesh")
def explicit_mesh(case: Case) -> None:
    """No public number: on a mesh with explicit axes, a result has a sharding over that mesh."""
    mesh = meshes.explicit_mesh(case)
    with jax.set_mesh(mesh):
        operand = jax.device_put(case.operand, NamedSharding(mesh, PartitionSpec()))
        result = jax.jit(lambda x: case.apply(add_one, x))(operand)
        case.gives(case.expected, np.asarray, result)
    case.same("sharding", Stage.RESULT, type(result.sharding), NamedSharding, "the type of the result's sharding")


@case("jit", "call")
def decomposes_on_the_host(case: Case) -> None:
    """#26160: a callback ends that runs JAX's eigendecomposition, which shares LAPACK threads with the program."""
    decompose = jax.jit(lambda matrix: jnp.linalg.eig(matrix)[0])

    def host(operand: Any) -> Any:
        eigenvalues = np.asarray(decompose(np.eye(150, dtype=np.float32)))
        return np.asarray(operand) + np.float32(eigenvalues.real.mean())

    compiled = case.program(host)
    for _ in range(TRIPS):
        case.gives(case.expected, compiled, case.operand)


@case("jit", ONE_OF_EACH, needs="no_tracing")
def without_tracing(case: Case) -> None:
    """#39289: a program that has run before runs again under `jax.no_tracing`, which forbids a new trace."""
    compiled = case.program(add_one)
    case.gives(case.expected, compiled, case.operand)
    with jax.no_tracing():
        case.gives(case.expected, compiled, case.operand)
