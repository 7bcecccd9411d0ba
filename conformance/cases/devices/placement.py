"""The device that runs a callback under jit over a mesh, and the devices that have its result."""

from __future__ import annotations

import re
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ...oracle.verdicts import Stage
from ...spec.jax_versions import shard_map
from ..harness.case import WHILE, Case, case
from ..harness.hosts import add_one, error_of, fail
from ..harness.registry import EVERY_KIND

SHARDED = "pure_callback_sharding io_callback_sharding"
RUNS = 3


@case("pjit", SHARDED, also="X5", minimum_devices=2)
@case("pjit", "pure_callback io_callback", minimum_devices=2)
def result_reaches_all(case: Case) -> None:
    """One device calls back, and every device has the whole result or its part: the compiler chooses."""
    host = case.host(add_one)
    # Not case.compile: its explicit output sharding would hide the sharding of the callback's result.
    result = jax.jit(lambda x: case.apply(host, x), in_shardings=case.split)(case.operand)
    case.gives(case.operand + 1, np.asarray, result)
    for shard in result.addressable_shards:
        case.gives(case.operand[shard.index] + 1, np.asarray, shard.data)


@case("pjit", f"{EVERY_KIND} debug_callback_ordered", "H10 X5", minimum_devices=2)
def feeds_shard_map(case: Case) -> None:
    """A shard_map of the same program takes a callback's result, and a callback takes a shard_map's result."""
    rows = case.split.spec
    doubled = shard_map(lambda x: x * 2, mesh=case.mesh, in_specs=rows, out_specs=rows)
    host = case.host(add_one)
    for sharding in (case.split, NamedSharding(case.mesh, PartitionSpec())):
        program = jax.jit(lambda x: case.apply(host, doubled(case.apply(host, x))), in_shardings=sharding)
        case.gives(case.expected_of(case.expected * 2), program, case.operand)


@case("pjit", SHARDED, also="X5", minimum_devices=2)
def names_its_device(case: Case) -> None:
    """The compiled program places the callback on the named device, the last one."""
    # A callback does not know its device, so this check reads the compiled program.
    program = jax.jit(lambda x: case.apply(add_one, x), in_shardings=case.split)
    lowered = program.lower(case.operand).as_text()
    last = len(case.devices) - 1
    given = bool(re.search(rf"device_ids ?= ?\[{last}\]|maximal device={last}\b", lowered))
    case.check(given, "wrong device", Stage.LOWER, "the lowered program gives nothing to the last device")


@case("pjit", SHARDED, also="X5", minimum_devices=2)
def unknown_device(case: Case) -> None:
    """A device on which the computation does not run is refused."""
    fewer = case.over(case.devices[:-1])
    program = fewer.compile(lambda x: case.implementation.invoke(case.callback, add_one, x, x, case.devices))
    case.raises(lambda: program(fewer.operand), of=ValueError, kind="not refused", stage=Stage.LOWER)


@case("pjit", "id_tap call", "H10 H18", minimum_devices=2)
def each_names_another_device(case: Case) -> None:
    """In one program each callback of one function names another device, and that device runs it."""
    host = case.host()

    def on(index: int, x: Any) -> Any:
        if case.callback.function == "id_tap":
            return case.library.id_tap(host, x, tap_with_device=True, device_index=index)
        return case.library.call(host, x, result_shape=x, call_with_device=True, device_index=index)

    def program(x: Any) -> Any:
        for index in range(len(case.devices)):
            x = on(index, x)
        return x

    for result in case.runs(program, case.operand):
        case.gave(result, case.operand)
        case.barrier()
        actual = sorted(str(event.device) for event in case.events)
        case.same("wrong device", Stage.CALLBACK, actual, sorted(map(str, range(len(case.devices)))), "the devices")


@case("pjit", "call", "H5 H10", minimum_devices=4)
def on_two_meshes_at_once(case: Case) -> None:
    """While one run of a program waits, another one starts on other devices: each receives a device of its own."""
    started = threading.Event()
    notes = case.host()

    def wait(operand: Any) -> Any:
        started.wait(WHILE)
        return np.asarray(operand)

    @jax.jit
    def program(x: Any) -> Any:
        x = case.library.call(wait, x, result_shape=x)
        return case.library.call(notes, x, result_shape=x, call_with_device=True)

    pairs = case.devices[:2], case.devices[2:4]
    rows = [NamedSharding(Mesh(np.asarray(pair), ("devices",)), PartitionSpec("devices")) for pair in pairs]
    operands = [jax.device_put(np.full(2, number, np.float32), place) for number, place in enumerate(rows)]
    for _ in range(RUNS):
        case.forget()
        started.clear()
        results = [program(operand) for operand in operands]
        started.set()
        jax.block_until_ready(results)
        case.barrier()
        events = [event for event in case.events if event.site == notes.site]
        actual = sorted((float(event.leaves[0][0]), event.device) for event in events)
        case.same("wrong device", Stage.CALLBACK, actual, [(0.0, 0), (1.0, 2)], "operand and device")


@case("pjit", "io_callback call", "H9 H10 X3", minimum_devices=4, functions="barrier_wait")
def chosen_of_any_order(case: Case) -> None:
    """A mesh in reverse: the chosen device runs the callback, and the failure names it, whatever its place is."""
    mesh = Mesh(np.asarray(case.devices)[::-1], ("devices",))
    operand = jax.device_put(case.operand, NamedSharding(mesh, PartitionSpec("devices")))

    def program(x: Any, place: int) -> Any:
        if case.callback.function == "call":
            return case.library.call(fail, x, result_shape=x, device_index=place)
        return case.library.io_callback(fail, x, x, sharding=SingleDeviceSharding(mesh.devices[place]))

    for place in (0, 1, len(case.devices) - 1):
        error_of(jax.jit(program, static_argnums=1), operand, place)
        reported: Any = case.drain()
        actual = [failure.device for failure in getattr(reported, "failures", ())]
        case.same("wrong place", Stage.CALLBACK, actual, [mesh.devices[place]], f"failures of number {place}")
