"""Callbacks that run JAX: on one device, on all by pmap or over a mesh, and with callbacks in the inner program."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import BEGINS_WITHIN, Case, case
from ..harness.checks import error_of
from ..harness.hosts import add_one
from ..harness.registry import EVERY_KIND, OF_JAX, ONE_OF_EACH

SIDE = 64
SMALL_SIDE = 8
RUNS = 3


def _check_inside(case: Case, inner: Callable[[Any], Any]) -> None:
    """The host function runs a program that returns the first number of its operand."""
    # Compiled beforehand: compilation takes longer than the deadline of a callback.
    inner(case.operand)

    def answer(operand: Any) -> Any:
        array = np.asarray(operand)
        case.same("wrong operand", Stage.CALLBACK, float(inner(array)), float(array.ravel()[0]), "JAX in a callback")
        return add_one(array)

    host = case.host(answer)
    program = case.program(host)
    case.gives(case.expected, program, case.operand)
    case.saw(host, [case.operand])


@case("jit", EVERY_KIND)
def runs_jax_inside(case: Case) -> None:
    """Each callback makes arrays on a device and computes with them."""

    @jax.jit
    def inner(operand: Any) -> Any:
        square = jnp.full((SIDE, SIDE), operand.ravel()[0])
        return jnp.trace(square @ jnp.eye(SIDE)) / SIDE

    _check_inside(case, lambda operand: inner(jnp.asarray(operand)))


@case("jit", ONE_OF_EACH)
def runs_pmap(case: Case) -> None:
    """Each callback runs a program on all devices, by pmap."""
    count = len(case.devices)
    inner = jax.pmap(lambda x: x + 0, devices=case.devices)
    _check_inside(case, lambda operand: inner(np.full((count, 1), operand.ravel()[0]))[count - 1, 0])


@case("jit", ONE_OF_EACH)
def runs_mesh(case: Case) -> None:
    """Each callback runs one program over a mesh of all devices, with a collective in it."""
    count = len(case.devices)
    inner = jax.jit(lambda x: x.sum() / count, in_shardings=case.split)
    _check_inside(case, lambda operand: inner(np.full((count, 1), operand.ravel()[0])))


@case("jit", OF_JAX)
def starts_others(case: Case) -> None:
    """Each callback runs a program that has a callback of the same kind."""
    recording = case.host(add_one)
    inner = jax.jit(lambda x: case.apply(recording, x))
    inner_results: list[Any] = []

    def start(operand: Any) -> Any:
        inner_results.append(np.asarray(inner(np.asarray(operand))))
        return inner_results[-1]

    host = case.host(start)
    program = case.program(host)
    case.gives(case.expected, program, case.operand)
    case.saw(host, [case.operand])
    case.saw(recording, [case.operand])
    # A debug callback's result is no result of the outer program.
    case.same("wrong result", Stage.CALLBACK, [each.tolist() for each in inner_results], [case.expected.tolist()])


@case("jit", "id_tap", "H12", deadline=10.0, isolated=True)
@case("jit", "call", "H3", deadline=10.0, isolated=True)
def starts_callbacks(case: Case) -> None:
    """A tap or a call runs a program that taps and calls, and gets its result."""
    tapped = case.host()

    @jax.jit
    def inner(x: Any) -> Any:
        return case.implementation.call(add_one, case.implementation.tap(tapped, x), x)

    host = case.host(lambda operand: np.asarray(inner(operand)))
    program = case.program(host)
    case.gives(case.expected, program, case.operand)
    case.saw(host, [case.operand])
    case.saw(tapped, [case.operand])


# Compiled once: each callback would take longer than its deadline.
_computes = jax.jit(lambda v: jnp.tanh(v) @ jnp.tanh(v).T)


@case("pmap pjit", "id_tap call", "H9 H10")
def runs_jax(case: Case) -> None:
    """Callbacks of a program on all devices compute with JAX: the first matrix of each callback's operand."""
    count = len(case.devices)
    numbers = np.arange(count * SMALL_SIDE * SMALL_SIDE, dtype=np.float32)
    matrices = numbers.reshape(count, SMALL_SIDE, SMALL_SIDE) / 100
    computed: list[Any] = []

    def answer(operand: Any) -> Any:
        computed.append(np.asarray(_computes(operand.reshape(-1, SMALL_SIDE)[:SMALL_SIDE])))
        return computed[-1]

    host = case.host(answer)
    like = jax.ShapeDtypeStruct((SMALL_SIDE, SMALL_SIDE), np.float32)

    def through(x: Any) -> Any:
        result = case.apply(host, x, like)
        return x + result if case.callback.returns_new_value else x

    firsts = matrices if case.layout == "pmap" else matrices[:1]
    products = np.stack([np.asarray(_computes(first)) for first in firsts])
    result = np.asarray(case.compile(through)(matrices))
    case.barrier()
    wanted = matrices + products if case.callback.returns_new_value else matrices
    case.check(np.allclose(result, wanted, rtol=1e-5), "result", Stage.RESULT, "JAX in a callback is wrong")
    actual = np.stack(sorted(computed, key=np.trace))
    right = actual.shape == products.shape and np.allclose(actual, sorted(products, key=np.trace), rtol=1e-5)
    case.check(right, "wrong operand", Stage.CALLBACK, f"callbacks that ran JAX computed {actual}")


@case("pmap", "call", "H9", minimum_devices=2, deadline=10.0, isolated=True)
def runs_jax_on_all(case: Case) -> None:
    """A call, for which a program on all devices waits, runs another program on all devices."""
    doubled = jax.pmap(lambda v: v * 2, devices=case.devices)
    doubled(case.operand)
    program = case.program(case.host(lambda operand: np.asarray(doubled(case.operand))[0] * 0 + operand))
    case.gives(case.operand, program, case.operand)


@case("pmap", "call", "H9 H15", minimum_devices=2, isolated=True)
def starts_callbacks_on_all(case: Case) -> None:
    """As above, with callbacks in the inner program: an implementation can detect this, and refuse."""
    inner = case.compile(lambda v: case.implementation.tap(lambda operand, transforms: None, v))
    inner(case.operand)
    program = case.program(case.host(lambda operand: np.asarray(inner(case.operand))[0] * 0 + operand))
    if error := error_of(program, case.operand):
        case.check("several devices" in str(error), "error", Stage.RESULT, f"a refusal without its reason: {error}")
        case.barrier_reports("several devices")


@case("pmap", "call", "H5 H9 H13", minimum_devices=2, isolated=True, deadline=40.0)
def taps_inside_on_its_device(case: Case) -> None:
    """Each device's call starts a program with a tap on its own device, at each run: nothing waits for ever."""
    tapped = case.host()
    inner = jax.jit(lambda v: case.implementation.tap(tapped, v))
    numbers = [jax.device_put(np.float32(place), device) for place, device in enumerate(case.devices)]
    jax.block_until_ready([inner(number) for number in numbers])

    def start_inner(operand: Any, device: Any) -> Any:
        inner(numbers[case.devices.index(device)])
        return np.asarray(operand)

    outer = case.compile(lambda x: case.library.call(start_inner, x, result_shape=x, call_with_device=True))
    case.barrier()
    for _ in range(RUNS):
        case.forget()
        case.gives(case.operand, outer, case.operand)
        case.saw_parts(tapped, np.arange(len(numbers), dtype=np.float32))


@case("jit", "id_tap", "H12", minimum_devices=2)
def taps_of_an_inner_pmap(case: Case) -> None:
    """H12: taps of a program on several devices that a tap starts run at once: before the tap's function goes on."""
    ran: list[str] = []
    inner = jax.pmap(lambda x: case.implementation.tap(lambda *_: ran.append("inner"), x), devices=case.devices[:2])

    def outer(_: Any, transforms: Any) -> None:
        jax.block_until_ready(inner(np.arange(2, dtype=np.float32)))
        ran.append("outer")

    for _ in range(RUNS):
        ran.clear()
        case.implementation.tap(outer, np.float32(0))
        case.barrier()
        case.same("order", Stage.CALLBACK, ran, ["inner", "inner", "outer"])


@case("jit", "call", "H13 H15", minimum_devices=6, functions="barrier_wait", isolated=True, deadline=40.0)
def refused_three_levels_deep(case: Case) -> None:
    """A program on two devices is refused in a callback that is in one on one device, in a callback of one on two."""
    number = jax.ShapeDtypeStruct((), np.float32)
    third = jax.pmap(lambda x: case.implementation.tap(lambda *_: None, x), devices=case.devices[2:4])

    def start_third(operand: Any) -> Any:
        jax.block_until_ready(third(np.ones(2, np.float32)))
        return operand

    second = jax.jit(lambda x: case.apply(start_third, x, number))

    def start_second(operand: Any) -> Any:
        return np.asarray(second(jax.device_put(operand, case.devices[5])))

    first = jax.pmap(lambda x: case.apply(start_second, x, number), devices=case.devices[:2])
    case.raises(lambda: first(np.ones(2, np.float32)), "runs on several devices itself", kind="not refused")
    case.drain()


@case("pmap", "call", "H5 H9 H15", minimum_devices=2, isolated=True)
def refused_and_started_again(case: Case) -> None:
    """A program that was refused inside a callback leaves nothing in that thread: started again, it keeps its order."""
    gate = threading.Event()
    gate.set()
    hosts = [case.host(lambda operand: gate.wait(BEGINS_WITHIN), name="first"), case.host(name="second")]
    first, second = (case.compile(functools.partial(case.implementation.tap, host)) for host in hosts)
    jax.block_until_ready([program(case.operand) for program in (first, second, first, second)])

    def inside(operand: Any) -> Any:
        second(case.operand)
        return operand

    # An implementation may be able to run it.
    refused = error_of(lambda: case.program(inside)(case.operand))
    case.drain()
    for _ in range(RUNS if refused else 0):
        case.forget()
        gate.clear()
        jax.block_until_ready([first(case.operand), second(case.operand)])
        gate.set()
        for host in hosts:
            case.saw_parts(host, case.operand)
        for row in case.operand:
            case.ran_in_turn("first", "second", of=row)
