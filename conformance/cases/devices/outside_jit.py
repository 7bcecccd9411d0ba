"""Callbacks outside jit: the device that has the result, and the user's mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import Host, add_one
from ..harness.registry import ONE_OF_EACH

RUNS = 3


@case("jit", "call pure_callback io_callback", "H4 X2 X3", minimum_devices=2)
def results_without_a_place(case: Case) -> None:
    """A result outside jit is on a chosen device only if an operand is: otherwise it goes with arrays of any device."""
    host, last = case.host(add_one), case.devices[-1]
    there = jax.device_put(np.ones(3, np.float32), last)
    for operand in (jnp.ones(3, np.float32), np.ones(3, np.float32), there):
        result = case.apply(host, operand)
        case.same("wrong place", Stage.RESULT, result.committed, operand is there, "whether its device was chosen")
        case.same("wrong place", Stage.RESULT, (result + there).devices(), {last}, "its sum with another array")


@case("jit", "call pure_callback io_callback io_callback_ordered", "H3 H4 X2 X3", minimum_devices=2)
def results_without_elements(case: Case) -> None:
    """A result without elements is where its operand is. An io_callback of it is called, and a pure one is not."""
    last, empty = case.devices[-1], np.zeros((0, 2), np.float32)
    operand = jax.device_put(np.ones(3, np.float32), last)
    host = case.host(returns=[empty])

    def apply(x: Any) -> Any:
        return case.apply(host, x, empty)

    for run in (apply, jax.jit(apply)):
        case.forget()
        result = jax.block_until_ready(run(operand))
        case.same("wrong place", Stage.RESULT, result.devices(), {last}, "its devices")
        case.same("wrong place", Stage.RESULT, result.shape, empty.shape, "its shape")
        case.saw(host, [] if case.callback.function == "pure_callback" else [operand])


@case("jit", "call pure_callback io_callback", "H3 H15 X2 X3")
def empty_beside_others(case: Case) -> None:
    """Of two results one has no elements, outside jit and in it: the other has its values."""
    empty, row = np.zeros(0, np.float32), np.arange(2, dtype=np.float32)
    for results in ((empty, row), (row, empty)):
        host = case.host(returns=[results])

        def apply(x: Any, host: Host = host, results: Any = results) -> Any:
            return case.apply(host, x, results)

        case.gives(results, apply, jnp.ones(3))
        case.gives(results, jax.jit(apply), jnp.ones(3))


@case("jit", f"{ONE_OF_EACH} buffer_callback dlpack_callback", "H4 X2 X3 X4 B1 D1")
# JAX's own transfers the token of its order.
@case("jit", "io_callback_ordered", "H4 X3", functions="barrier_wait")
def under_a_transfer_guard(case: Case) -> None:
    """Outside jit, a callback runs where the program forbids implicit transfers: it makes none."""
    host = case.host(add_one)
    # In-place callbacks need a program, which is compiled at the first of these.
    for number, guard in enumerate(("allow", "disallow")):
        operand, expected = jnp.asarray(case.operand) + number, case.operand + np.float32(number)
        case.forget()
        with jax.transfer_guard(guard):
            result = jax.block_until_ready(case.apply(host, operand))
        case.gives(case.expected_of(expected), np.asarray, result)
        case.saw(host, [expected])


@case("jit", "call debug_callback", "H4 X4", needs="set_mesh")
@case("jit", "pure_callback io_callback", "H4 X2 X3", needs="set_mesh", functions="barrier_wait")
def outside_of_the_users_mesh(case: Case) -> None:
    """What a function runs in JAX is outside of the mesh that the program has set, outside jit and in it."""
    empty: list[bool] = []

    def answer(operand: Any) -> Any:
        empty.append(jax.sharding.get_abstract_mesh().empty)
        return np.asarray(jnp.asarray(operand) * 2)

    host = case.host(answer)
    mesh = Mesh(np.asarray(case.devices[:1]), ("x",))
    for setting in (lambda: jax.set_mesh(mesh), lambda: jax.sharding.use_abstract_mesh(mesh.abstract_mesh)):
        for run in (lambda x: case.apply(host, x), jax.jit(lambda x: case.apply(host, x))):
            empty.clear()
            with setting():
                # Another way may be taken from the second run on.
                for _ in range(RUNS):
                    jax.block_until_ready(run(jnp.asarray(case.operand)))
                    case.barrier()
            case.same("wrong place", Stage.RESULT, empty, [True] * RUNS, "whether the function has no mesh")
