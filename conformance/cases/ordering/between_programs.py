"""Programs on the same device run their ordered callbacks in the order in which they were started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ...oracle.verdicts import Stage
from ...spec.jax_versions import shard_map
from ..harness.case import BEGINS_WITHIN, WHILE, Case, case
from ..harness.hosts import Held, add_one
from ..harness.registry import ORDERED

ROUNDS = 4
OVERTAKING_SECONDS = 0.5
"""The time in which a later program could run before one that cannot run yet."""

NUMBER = jax.ShapeDtypeStruct((), np.float32)


@case("pmap", "call io_callback_ordered", "H5 X3", minimum_devices=2)
def one_of_its_devices(case: Case) -> None:
    """A program on the last device of an earlier one, whose callback there still runs, begins after it."""
    case = case.over(case.devices[:2])
    early = threading.Event()

    def late(operand: Any) -> Any:
        if np.ravel(operand)[0] == case.operand[-1][0]:
            early.wait(WHILE)
        return np.asarray(operand)

    def quick(operand: Any) -> Any:
        early.set()
        return np.asarray(operand)

    slow, other = case.host(late, name="on both"), case.host(quick, name="on one")
    on_both, on_one = case.program(slow), jax.jit(lambda x: case.apply(other, x))
    placed = jax.device_put(case.operand[-1], case.devices[-1])
    # An implementation may take another way from the second run on.
    for _ in range(2 + ROUNDS):
        case.forget()
        early.clear()
        jax.block_until_ready([on_both(case.operand), on_one(placed)])
        case.ran_in_turn("on both", "on one", of=case.operand[-1])


def _takes_a_while(x: Any) -> Any:
    """A program without callbacks, whose dispatch returns before its result is there."""
    return jax.lax.fori_loop(0, 40, lambda _, carry: jnp.tanh(carry @ carry), jnp.full((400, 400), x[0]))[0, 0] * 0 + x


@case("pmap", "id_tap call io_callback_ordered", "H5 X3", minimum_devices=2)
def all_after_one(case: Case) -> None:
    """A program on both devices begins after an earlier one on the last of them, which waits for its operand."""
    case = case.over(case.devices[:2])
    of_both, of_one = case.host(name="on both"), case.host(name="on one")
    on_both, on_one = case.program(of_both), jax.jit(lambda x: case.apply(of_one, x))
    before = jax.jit(_takes_a_while)
    placed = jax.device_put(case.operand[-1], case.devices[-1])
    for _ in range(2 + ROUNDS):
        case.forget()
        jax.block_until_ready([on_one(before(placed)), on_both(case.operand)])
        case.ran_in_turn("on one", "on both", of=case.operand[-1])


@case("pmap", "id_tap call io_callback_ordered debug_callback_ordered", "H5")
def order_across_threads(case: Case) -> None:
    """One thread dispatches a program, then another thread the next one: each device runs the callbacks in order."""
    both_started = threading.Event()

    def answer(operand: Any) -> Any:
        # A later program has time to overtake, unless its dispatch waits for this callback.
        both_started.wait(1.0)
        return add_one(operand)

    hosts = [case.host(answer, name=name) for name in ("first", "second")]
    results: list[Any] = []
    for program in [case.program(host) for host in hosts]:
        thread = threading.Thread(target=lambda p=program: results.append(p(case.operand)), daemon=True)
        thread.start()
        thread.join(BEGINS_WITHIN)
    both_started.set()
    for result in results:
        case.gives(case.expected, np.asarray, result)
    for host in hosts:
        case.saw_parts(host, case.operand)
    for row in case.operand:
        case.ran_in_turn("first", "second", of=row)


@case("jit", f"{ORDERED} pure_callback io_callback debug_callback", "H5 X2 X3 X4", minimum_devices=3)
def waits_for_operand(case: Case) -> None:
    """If a program's operand is not ready, its ordered callback still runs before that of a later one on its device.

    Another thread starts the later program. The operand comes from a program on other devices, which is held up.
    """
    first_started, later_ran, hold_up = threading.Event(), threading.Event(), Held()
    gate = hold_up.release

    def later(operand: Any) -> Any:
        later_ran.set()
        return add_one(operand)

    first_host, later_host = case.host(add_one, name="first"), case.host(later, name="later")
    # The dispatch of a program over several devices does not wait for its callbacks. This cell does not test JAX's own.
    like = jax.ShapeDtypeStruct(case.operand.shape, np.float32)
    held_up = jax.pmap(lambda x: jax.pure_callback(hold_up, like, x), devices=case.devices[1:3])
    first_program, later_program = case.program(first_host), case.program(later_host)
    values = np.stack([case.operand] * 2)
    # Compiled beforehand: compilation takes longer than the times of this case.
    gate.set()
    jax.block_until_ready([held_up(values), first_program(case.operand), later_program(case.operand)])
    case.barrier()
    case.forget()
    gate.clear()
    later_ran.clear()

    def run_first() -> None:
        # Only in newer releases the shard of a pmap has the mapped axis.
        shard = held_up(values).addressable_shards[0].data.reshape(case.operand.shape)
        result = first_program(jax.device_put(shard, case.devices[0]))
        first_started.set()
        case.gives(case.expected, np.asarray, result)

    with case.in_thread(run_first):
        # If the dispatch itself waits for the operand, no program can overtake.
        first_started.wait(1.0)
        with case.in_thread(lambda: case.gives(case.expected, later_program, case.operand)):
            later_ran.wait(OVERTAKING_SECONDS)
            in_order = first_started.is_set()
            gate.set()
    case.saw(first_host, [case.operand])
    case.saw(later_host, [case.operand])
    if case.callback.ordered and in_order:
        case.ran_in_turn("first", "later")


@case(
    "pjit",
    "id_tap id_print call io_callback_ordered debug_callback_ordered debug_print_ordered",
    "H5 H10 X5",
    minimum_devices=3,
    functions="barrier_wait",
)
def outside_jit_after_its_device(case: Case) -> None:
    """A callback outside jit runs after that of the program on its device, whatever other devices its operand has."""
    index, last = len(case.devices) - 1, case.devices[-1]
    whole, turned = (
        NamedSharding(Mesh(np.asarray(devices), ("devices",)), PartitionSpec())
        for devices in (case.devices, [*case.devices[::-1]])
    )
    library = case.library
    named: dict[str, Callable[[Any, Any], Any]] = {
        "id_tap": lambda host, x: library.id_tap(host, x, device_index=index),
        "call": lambda host, x: library.call(host, x, result_shape=NUMBER, device_index=index),
        "io_callback": lambda host, x: library.io_callback(
            host, NUMBER, x, ordered=True, sharding=SingleDeviceSharding(last)
        ),
    }
    _overtakes(case, lambda host, x: case.apply(host, x, NUMBER), last)
    _overtakes(case, lambda host, x: case.apply(host, x, NUMBER), turned)
    if case.callback.function in named:
        _overtakes(case, named[case.callback.function], whole)


def _overtakes(case: Case, through: Callable[[Any, Any], Any], place: Any) -> None:
    """Hold up a program on the last two devices, and look whether a callback on an operand there runs meanwhile."""
    case.forget()
    entered, release, ran = threading.Event(), threading.Event(), threading.Event()

    def held(operand: Any) -> Any:
        if np.ravel(operand)[0] == 1:
            entered.set()
            release.wait(2 * BEGINS_WITHIN)
            seen.append("in the program")
        return np.asarray(operand)

    def quick(operand: Any, transforms: Any = ()) -> Any:
        seen.append("outside jit")
        ran.set()
        return np.float32(1)

    seen: list[str] = []
    operand = jax.block_until_ready(jax.device_put(np.float32(2), place))
    mesh, rows = Mesh(np.asarray(case.devices[-2:]), ("devices",)), PartitionSpec("devices")
    # A program of one device may run in the thread that dispatches it, and it has not started for others then.
    program = jax.jit(
        shard_map(lambda x: case.implementation.call(held, x, x), mesh=mesh, in_specs=rows, out_specs=rows)
    )
    placed = jax.device_put(np.arange(2, dtype=np.float32), NamedSharding(mesh, rows))
    dispatched = threading.Event()

    def dispatch() -> Any:
        result = program(placed)
        dispatched.set()
        return result

    with case.in_thread(dispatch):
        begun = entered.wait(BEGINS_WITHIN) and dispatched.wait(BEGINS_WITHIN)
        case.check(begun, "lost", Stage.DISPATCH, "a program on two devices did not begin, or was not dispatched")
        with case.in_thread(lambda: through(quick, operand)):
            # One-sided: a slow machine can only miss the case.
            ran.wait(WHILE)
            release.set()
    case.check(ran.wait(BEGINS_WITHIN), "stuck", Stage.DISPATCH, f"a callback on {place} did not run")
    case.barrier()
    case.same("order", Stage.CALLBACK, seen, ["in the program", "outside jit"], f"on {place}")
