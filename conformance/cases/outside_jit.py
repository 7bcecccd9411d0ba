"""Fault cells of callbacks outside jit: the device that calls and has the result, numbers, and who waits for them."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import EARLY_SECONDS, PATIENCE
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of, unequal
from .harness.registry import planted
from .traces import library

LARGE = 1 << 16
ALIGNMENT = 64
MESH_RUNS = 3


differs = partial(unequal, "wrong place", Stage.RESULT)


@planted("jit", "id_tap call", "H1 H3 H10", minimum_devices=2)
def where_eager_callbacks_are(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As under jit, the operand whose device was chosen decides on the device, and the result goes there."""
    callers: list[Any] = []
    last = bench.devices[-1]
    chosen, free = jax.device_put(np.float32(3), last), jnp.float32(4)

    def tap(operand: Any, transforms: Any, device: Any) -> None:
        callers.append(device)

    def host(operand: Any, device: Any) -> Any:
        callers.append(device)
        return np.asarray(jax.tree.leaves(operand)[0]) + np.float32(1)

    def apply(operand: Any) -> Any:
        if callback.function == "id_tap":
            return library(bench).id_tap(tap, operand, tap_with_device=True)
        wanted = jax.ShapeDtypeStruct(jnp.shape(jax.tree.leaves(operand)[0]), np.float32)
        return library(bench).call(host, operand, result_shape=wanted, call_with_device=True)

    anomalies = []
    for what, operands in (("first", (chosen, free)), ("last", (free, chosen))):
        result = apply(operands)
        bench.implementation.barrier()
        anomalies += differs(f"the device, the chosen operand {what}", callers[-1:], [last])
        if callback.returns_new_value:
            anomalies += differs(f"the result, the chosen operand {what}", result.devices(), {last})
            anomalies += check_value("the result", lambda r=result: r, np.asarray(operands[0]) + np.float32(1))  # type: ignore[misc]
    turned = jax.sharding.Mesh(np.asarray(bench.devices[::-1]), ("devices",))
    rows = NamedSharding(turned, PartitionSpec("devices"))
    apply(jax.device_put(np.zeros(len(bench.devices), np.float32), rows))
    bench.implementation.barrier()
    anomalies += differs("the device of an operand on a mesh that begins with the last", callers[-1:], [last])
    for devices in (bench.devices, bench.devices[-2:], bench.devices[-1:]):
        mesh = jax.sharding.Mesh(np.asarray(devices), ("devices",))
        rows = NamedSharding(mesh, PartitionSpec("devices"))
        split = jax.device_put(np.arange(len(devices), dtype=np.float32), rows)
        result = apply(split)
        bench.implementation.barrier()
        where = f"on a mesh of {len(devices)}"
        anomalies += differs(f"the device of an operand {where}", callers[-1:], [devices[0]])
        if callback.returns_new_value:
            everywhere = NamedSharding(mesh, PartitionSpec())
            if not result.sharding.is_equivalent_to(everywhere, result.ndim):
                anomalies += differs(f"the result of an operand {where}", result.sharding, everywhere)
            wanted = np.asarray(split) + np.float32(1)
            anomalies += check_value(f"the result {where}", lambda r=result: r, wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after callbacks outside jit")


@planted("jit", "id_tap call", "H10", minimum_devices=2)
def named_outside_jit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each device of an operand's mesh can be named as the one that calls; without operands it is the default one."""
    callers: list[Any] = []

    def tap(operand: Any, transforms: Any, device: Any) -> None:
        callers.append(device)

    def host(operand: Any, device: Any) -> None:
        callers.append(device)

    def apply(operand: Any, index: int = 0) -> None:
        if callback.function == "id_tap":
            library(bench).id_tap(tap, operand, tap_with_device=True, device_index=index)
        else:
            library(bench).call(host, operand, call_with_device=True, device_index=index)
        bench.implementation.barrier()

    split = jax.device_put(np.arange(len(bench.devices), dtype=np.float32), bench.split)
    for index in range(len(bench.devices)):
        apply(split, index)
    anomalies = differs("the devices that were named", callers, [*bench.devices])
    last = bench.devices[-1]
    with jax.default_device(last):
        apply(())
    return anomalies + differs("the device without operands", callers[-1:], [last])


@planted("jit", "id_tap", "H1 H4")
def eager_numbers(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H4: a tap of a number in a function that JAX traces and then runs outside jit returns an array of its type."""
    seen: list[Any] = []

    def tapped(number: Any) -> Any:
        return bench.implementation.tap(lambda operand, transforms: seen.append(operand), number)

    # It runs equation by equation, with the numbers as JAX wrote them into these.
    result = jax.checkpoint(lambda x: (tapped(1.5), tapped(4), tapped(True)))(jnp.float32(2))
    bench.implementation.barrier()
    wanted = [np.float32(1.5), np.int32(4), np.bool_(True)]
    anomalies = []
    for what, found in (("the tap was given", seen), ("the function returned", result)):
        arrays = [isinstance(each, (np.ndarray, jax.Array)) for each in found]
        if not all(arrays) or [(each.dtype, each.tolist()) for each in found] != [
            (each.dtype, each.tolist()) for each in wanted
        ]:
            witness = f"{what} {found!r}, expected arrays of {wanted}"
            anomalies.append(Anomaly("result", Stage.RESULT, witness))
    # A number of Python makes nothing wider, as in jit.
    few = [(jnp.bfloat16(1) + each).dtype.name for each in result[:2]]
    return anomalies + differs("the types of its sums with a bfloat16", few, ["bfloat16"] * 2)


@planted(
    "jit",
    "call io_callback io_callback_ordered debug_callback debug_callback_ordered buffer_callback_side_effect",
    "H13",
    functions="barrier_wait",
)
def barrier_covers_eager(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: the barrier of another thread waits for a call outside jit that is running."""
    entered, release, passed = threading.Event(), threading.Event(), threading.Event()

    def host(operand: Any) -> Any:
        entered.set()
        release.wait(2 * PATIENCE)
        return np.asarray(operand) + np.float32(1)

    def call() -> None:
        bench.apply(callback, host, jnp.asarray(bench.operand))

    def wait() -> None:
        bench.implementation.barrier()
        passed.set()

    calling = threading.Thread(target=call, daemon=True)
    waiting = threading.Thread(target=wait, daemon=True)
    calling.start()
    try:
        if not entered.wait(PATIENCE):
            return [Anomaly("lost", Stage.CALLBACK, "the call did not begin")]
        waiting.start()
        # One-sided: a slow machine can only miss the fault.
        early = passed.wait(EARLY_SECONDS)
    finally:
        release.set()
    calling.join(PATIENCE)
    waiting.join(PATIENCE)
    if calling.is_alive() or waiting.is_alive():
        return [Anomaly("stuck", Stage.BARRIER, "the barrier did not return after the call had ended")]
    if early:
        return [Anomaly("early barrier", Stage.BARRIER, "the barrier returned while a call outside jit was running")]
    return []


@planted("jit", "id_tap", "H13")
def jaxs_barrier_covers_eager(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: JAX's own barrier waits for a tap outside jit, whose function runs in another thread."""
    release, ended = threading.Event(), threading.Event()

    def host(operand: Any) -> None:
        release.wait(2 * PATIENCE)
        ended.set()

    bench.apply(callback, host, jnp.asarray(bench.operand))
    in_time: list[bool] = []

    def wait() -> None:
        # The barrier of JAX covers what its own thread has started.
        bench.apply(callback, host, jnp.asarray(bench.operand))
        jax.effects_barrier()
        in_time.append(ended.is_set())

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    # One-sided: a slow machine can only miss the fault.
    waiting.join(EARLY_SECONDS)
    release.set()
    waiting.join(PATIENCE)
    anomalies = check_quiet_barrier(bench, "after the tap had ended")
    if not in_time:
        return [*anomalies, Anomaly("stuck", Stage.BARRIER, "jax.effects_barrier did not return after the taps")]
    if not in_time[0]:
        witness = "jax.effects_barrier returned while a tap outside jit had not run"
        anomalies.append(Anomaly("early barrier", Stage.BARRIER, witness))
    return anomalies


@planted("jit", "call pure_callback io_callback io_callback_ordered", "H15 X2 X3")
def raises_outside_jit(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Outside jit the error of a function comes at the call, with its words, and the next call is as usual."""
    fails = True

    def host(operand: Any) -> Any:
        if fails:
            raise ValueError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    operand = jnp.asarray(bench.operand)
    anomalies = []
    for _ in range(2):
        fails = True
        error = error_of(lambda: bench.apply(callback, host, operand))
        # The barrier reports it as well, or does not: a computation has ended with it.
        error_of(bench.implementation.barrier)
        if not isinstance(error, RuntimeError) or PLANTED not in str(error):
            witness = f"a callback that raised outside jit ended with {summary(error) if error else 'a result'}"
            anomalies.append(Anomaly("swallowed error", Stage.DISPATCH, witness))
        fails = False
        result = np.asarray(bench.apply(callback, host, operand))
        if not np.array_equal(result, bench.operand + 1):
            anomalies.append(Anomaly("result", Stage.RESULT, f"after a failure outside jit it gave {result}"))
    return anomalies + check_quiet_barrier(bench, "after failures outside jit")


@planted("jit", "call pure_callback io_callback io_callback_ordered", "H3 H11 X2 X3")
def changes_its_result(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A function may change the array that it has returned: results that a program has stay as they were."""
    # JAX shares aligned memory of NumPy arrays where it can.
    memory = np.zeros(LARGE + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    shared = memory[start : start + LARGE].view(np.float32)

    def host(operand: Any) -> Any:
        shared[...] = np.asarray(operand).ravel()[0]
        return shared

    like = jax.ShapeDtypeStruct(shared.shape, np.float32)

    def apply(x: Any) -> Any:
        return bench.apply(callback, host, x, like)

    anomalies: list[Anomaly] = []
    free = jnp.zeros(())
    chosen = jax.device_put(np.float32(0), bench.devices[0])
    everywhere = jax.device_put(np.float32(0), NamedSharding(bench.mesh, PartitionSpec()))
    for what, run, operand in (
        ("outside jit", apply, free),
        ("outside jit, on a chosen device", apply, chosen),
        ("outside jit, on a mesh", apply, everywhere),
        ("in jit", jax.jit(apply), free),
    ):
        results = [jax.block_until_ready(run(operand + number)) for number in range(3)]
        bench.implementation.barrier()
        found = [sorted({*np.asarray(result).tolist()}) for result in results]
        if found != [[0.0], [1.0], [2.0]]:
            witness = f"{what} three results of one changing array have the elements {found}"
            anomalies.append(Anomaly("result", Stage.RESULT, witness))
    return anomalies


@planted("jit", "id_tap", "H7")
def told_anew(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap may change what it is told of its transformations: the next one is told all of them."""
    told: list[Any] = []

    def host(operand: Any, transforms: Any) -> None:
        told.append([(name, {**entry}) for name, entry in transforms])
        for _, entry in transforms:
            entry.clear()

    lanes = jax.vmap(lambda x: bench.implementation.tap(host, x))
    for run in (lanes, jax.jit(lanes)):
        for _ in range(2):
            jax.block_until_ready(run(jnp.asarray(bench.operand)))
        bench.implementation.barrier()
    wanted = [[("batch", {"batch_dims": (0,)})]] * 4
    if told != wanted:
        return [Anomaly("wrong transforms", Stage.CALLBACK, f"the taps were told {told}, expected {wanted}")]
    return []


@planted("jit", "call debug_callback", "H4 X4", needs="set_mesh")
@planted("jit", "pure_callback io_callback", "H4 X2 X3", needs="set_mesh", functions="barrier_wait")
def outside_of_the_users_mesh(bench: Bench, callback: Callback) -> list[Anomaly]:
    """What a function runs in JAX is outside of the mesh that the program has set, outside jit and in it."""
    empty: list[bool] = []

    def host(operand: Any) -> Any:
        empty.append(jax.sharding.get_abstract_mesh().empty)
        return np.asarray(jnp.asarray(operand) * 2)

    mesh = jax.sharding.Mesh(np.asarray(bench.devices[:1]), ("x",))
    anomalies: list[Anomaly] = []
    for what, setting in (
        ("with a mesh", lambda: jax.set_mesh(mesh)),
        ("with an abstract mesh", lambda: jax.sharding.use_abstract_mesh(mesh.abstract_mesh)),
    ):
        for way, run in (
            ("outside jit", lambda x: bench.apply(callback, host, x)),
            ("in jit", jax.jit(lambda x: bench.apply(callback, host, x))),
        ):
            empty.clear()
            with setting():
                # Another way may be taken from the second run on.
                for _ in range(MESH_RUNS):
                    jax.block_until_ready(run(jnp.asarray(bench.operand)))
                    bench.implementation.barrier()
            label = f"{way}, {what}: whether the function has no mesh"
            anomalies += differs(label, empty, [True] * MESH_RUNS)
    return anomalies


@planted("jit", "call pure_callback io_callback", "H3 H15 X2 X3")
def empty_beside_others(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Of two results one has no elements, outside jit and in it: the other has its values."""
    empty, row = np.zeros(0, np.float32), np.arange(2, dtype=np.float32)
    anomalies: list[Anomaly] = []
    for order in ((empty, row), (row, empty)):
        likes = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in order)

        def through(x: Any, order: Any = order, likes: Any = likes) -> Any:
            return bench.apply(callback, lambda _: order, x, likes)

        for way, run in (("outside jit", through), ("in jit", jax.jit(through))):
            for number, wanted in enumerate(order):
                label = f"{way}: result {number} of sizes {[each.size for each in order]}"
                anomalies += check_value(label, lambda n=number, run=run: run(jnp.ones(3))[n], wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after empty results")


@planted("shard_map", "id_tap", "H13", minimum_devices=2)
def jaxs_barrier_covers_both(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: JAX's own barrier waits for taps of all devices and for JAX's own callbacks, whichever came first."""
    anomalies: list[Anomaly] = []
    for held, of_jax in (("a tap on the last device", False), ("a callback of JAX's", True)):
        in_time = _in_time(bench, of_jax)
        anomalies += check_quiet_barrier(bench, f"after {held} had ended")
        if in_time != [True]:
            came = "returned while it had not ended" if in_time else "did not return"
            anomalies.append(Anomaly("early barrier", Stage.BARRIER, f"with {held}, jax.effects_barrier {came}"))
    return anomalies


def _in_time(bench: Bench, of_jax: bool) -> list[bool]:
    """Whether a callback held on the last device had ended when JAX's barrier returned; nothing if it did not."""
    release, ended = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def held(operand: Any) -> None:
        if np.array_equal(np.asarray(operand).ravel(), bench.operand[-1]):
            release.wait(2 * PATIENCE)
            ended.set()

    def tapping(x: Any) -> Any:
        return bench.implementation.tap(lambda operand, _: held(operand), x)

    def calling(x: Any) -> Any:
        jax.debug.callback(held if of_jax else lambda _: None, x)
        return x

    # After a callback of JAX's, taps outside jit: a program would wait for it, and so would the barrier.
    in_order = [bench.compile(program) for program in ([calling] if of_jax else [tapping, calling])]

    def run() -> None:
        for program in in_order:
            program(bench.operand)

    def wait() -> None:
        run()
        for device in bench.devices if of_jax else ():
            bench.implementation.tap(lambda *_: None, jax.device_put(np.float32(1), device))
        jax.effects_barrier()
        in_time.append(ended.is_set())

    # Compiled beforehand: the barrier should begin while the one that is held runs.
    release.set()
    run()
    jax.effects_barrier()
    bench.implementation.barrier()
    release.clear()
    ended.clear()
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    # One-sided: a slow machine can only miss the fault.
    waiting.join(EARLY_SECONDS)
    release.set()
    waiting.join(PATIENCE)
    return in_time
