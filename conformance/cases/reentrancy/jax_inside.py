"""Callbacks that run JAX: on one device, on all by pmap or over a mesh, and with callbacks in the inner program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import PLANTED, add_one, fail
from ..harness.registry import EVERY_KIND, ONE_OF_EACH

SIDE = 64
RUNS = 3


def _check_inside(case: Case, inner: Callable[[Any], Any]) -> None:
    """The host function runs a program that returns the first number of its operand."""
    # Compiled beforehand: compilation takes longer than the deadline of a callback.
    inner(case.parts(case.operand)[0])

    def answer(operand: Any) -> Any:
        array = np.asarray(operand)
        case.same("wrong operand", Stage.CALLBACK, float(inner(array)), float(array.ravel()[0]), "JAX in a callback")
        return add_one(array)

    host = case.host(answer)
    program = case.program(host)
    case.gives(case.expected, program, case.operand)
    case.saw_parts(host, case.operand)


@case("jit", EVERY_KIND)
@case("pmap pjit", "id_tap call pure_callback", also="H9 H10")
def runs_jax_inside(case: Case) -> None:
    """A callback can make arrays on a device and compute with them: it ends with the right result."""

    @jax.jit
    def inner(operand: Any) -> Any:
        square = jnp.full((SIDE, SIDE), operand.ravel()[0])
        return jnp.trace(square @ jnp.eye(SIDE)) / SIDE

    _check_inside(case, lambda operand: inner(jnp.asarray(operand)))


@case("jit", ONE_OF_EACH)
def runs_on_all_devices(case: Case) -> None:
    """A callback can run a program on all devices: it ends with the right result.

    By pmap, and over a mesh, with a collective in it.
    """
    count = len(case.devices)
    mapped = jax.pmap(lambda x: x + 0, devices=case.devices)
    _check_inside(case, lambda operand: mapped(np.full((count, 1), operand.ravel()[0]))[count - 1, 0])
    case.forget()
    summed = jax.jit(lambda x: x.sum() / count, in_shardings=case.split)
    _check_inside(case, lambda operand: summed(np.full((count, 1), operand.ravel()[0])))


@case("jit", EVERY_KIND)
def starts_others(case: Case) -> None:
    """A callback can run a program that has a callback of the same kind: both run once and give their results."""
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


@case("jit", "call pure_callback io_callback", "H15 X2 X3")
def fails_inside(case: Case) -> None:
    """A program that a callback starts fails, at first and later: its own error ends it, and others have results."""

    def fail_below_zero(operand: Any) -> Any:
        return fail() if float(np.asarray(operand)) < 0 else add_one(operand)

    inner = jax.jit(lambda x: case.apply(fail_below_zero, x))

    def start_inner(operand: Any) -> Any:
        for number in (-1, 2, -3, 4):
            if number < 0:
                case.raises(lambda: inner(np.float32(number)), PLANTED)  # noqa: B023 - called at once
            else:
                case.gives(np.float32(number + 1), inner, np.float32(number))
        return add_one(operand)

    program = case.program(start_inner)
    for _ in range(2):
        case.gives(case.expected, program, case.operand)
        # This barrier may report the failures of the inner program.
        case.drain()


@case("pmap", "call", "H9", minimum_devices=2, deadline=5.0, isolated=True)
def runs_jax_on_all(case: Case) -> None:
    """A call, for which a program on all devices waits, can run another program on all devices, and both end."""
    doubled = jax.pmap(lambda v: v * 2, devices=case.devices)
    doubled(case.operand)
    program = case.program(case.host(lambda operand: np.asarray(doubled(case.operand))[0] * 0 + operand))
    case.gives(case.operand, program, case.operand)


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
