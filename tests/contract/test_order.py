"""H4 and H5: callbacks run in every construct, all of them, on each device in program order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.constructs import CONSTRUCTS, emitted, emitter, expectation, numbered
from support.helpers import DEADLINE, Record
from support.pairwise import in_turns, pairwise

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
UNCHANGED = jax.ShapeDtypeStruct((), np.int32)
LAYOUTS = {layout.name: layout for layout in helpers.MAIN_LAYOUTS}


def check_order(record: Record, callers: tuple[int, ...], expected: list[Any], what: str) -> None:
    """Each caller made exactly the expected callbacks, in order; `emit` does not ask for devices, so count by value."""
    __tracebackhide__ = True
    got = emitted(record)
    if len(callers) == 1:
        assert got == expected, f"{what}: callbacks {got}, but should be {expected}"
        return
    for item in dict.fromkeys(expected):
        count, wanted = got.count(item), expected.count(item) * len(callers)
        assert count == wanted, f"{what}: {item} ran {count} times on all devices, but should {wanted} times"
    assert len(got) == len(expected) * len(callers), f"{what}: {len(got)} callbacks on {len(callers)} devices"


@pytest.mark.contract("H4", "H5")
@in_turns(("construct", "layout"), CONSTRUCTS, helpers.COMPILED, times=3)
def test_every_construct_in_order(construct: Any, layout: helpers.Layout) -> None:
    record = Record()
    plain = layout.run(lambda x: construct(x, lambda *_: None), layout.same(X))
    out = layout.run(lambda x: construct(x, emitter(record)), layout.same(X))
    hcb.barrier_wait()
    check_order(record, layout.callers, expectation(construct), construct.__name__)
    for got, want in zip(out, plain, strict=True):
        helpers.equal(got, want, f"result of {construct.__name__} with callbacks")


def many(record: Record, start: int, count: int = 12) -> Callable[[Any], Any]:
    """A program of many callbacks of both kinds that know their device."""

    def program(x):
        for number in range(start, start + count):
            if number % 4 == 3:
                hcb.call(record.caller(number, lambda _: None), x[:1], call_with_device=True)
            elif number % 4 == 1:
                x = hcb.call(
                    record.caller(number), x, result_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), call_with_device=True
                )
            else:
                hcb.id_tap(record.labelled(number), jnp.sin(x), tap_with_device=True)
        return x + 1

    return program


@pytest.mark.contract("H5")
@pytest.mark.parametrize("layout", helpers.LAYOUTS, ids=helpers.named)
def test_order_on_each_device_across_computations(layout: helpers.Layout, devices: list[jax.Device]) -> None:
    record = Record()
    programs = [layout.compile(many(record, start)) for start in (0, 12, 24)]
    outs = [programs[n % 3](layout.same(X)) for n in range(6)]
    helpers.finish(outs)
    expected = [number for n in range(6) for number in range(n % 3 * 12, n % 3 * 12 + 12)]
    for index in layout.callers:
        got = [seen.label for seen in record.on(devices[index])]
        assert got == expected, f"{layout.name}: order on device {index} is {got}, but should be {expected}"
    assert len(record.all) == len(expected) * len(layout.callers), "callbacks came from other devices too"


@pytest.mark.contract("H5")
def test_order_when_the_layout_changes_between_computations(devices: list[jax.Device]) -> None:
    """Each device sees its own callbacks in the order of dispatch, whatever set of devices each program runs on."""
    record = Record()
    layouts = [helpers.PMAP, helpers.JIT, helpers.SHARD_MAP_SUBSET, helpers.MESH, helpers.PMAP_SUBSET, helpers.MESH_2D,
               helpers.SHARD_MAP_REVERSED, helpers.JIT_DEVICE_5, helpers.SHARD_MAP_2D, helpers.EAGER]  # fmt: skip
    programs = [layout.compile(many(record, 100 * n, 6)) for n, layout in enumerate(layouts)]
    outs = [program(layout.same(X)) for _ in range(2) for program, layout in zip(programs, layouts, strict=True)]
    helpers.finish(outs)
    for device in devices:
        expected = [100 * n + k for _ in range(2) for n, layout in enumerate(layouts)
                    if device.id in layout.callers for k in range(6)]  # fmt: skip
        got = [seen.label for seen in record.on(device)]
        assert got == expected, f"order on {device} is {got}, but should be {expected}"


ORDERED_KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "tap": lambda function, x: hcb.id_tap(lambda x, _: function(x), x),
    "call": lambda function, x: hcb.call(function, x),
    "io": lambda function, x: hcb.io_callback(function, None, x, ordered=True),
    "debug": lambda function, x: hcb.debug.callback(function, x, ordered=True),
}


@pytest.mark.contract("H5", "X3", "X4")
@pairwise(
    former=("pmap", "shard_map", "mesh"),
    latter=("pmap", "jit", "eager", "mesh"),
    first_kind=("call", "io", "debug"),
    second_kind=ORDERED_KINDS,
)
def test_order_across_threads(former: str, latter: str, first_kind: str, second_kind: str) -> None:
    """One thread dispatches and then tells another, which dispatches: the first one's callbacks come first."""
    first, second = LAYOUTS[former], LAYOUTS[latter]
    record, gate, early, dispatched = Record(), threading.Event(), threading.Event(), threading.Event()

    def slow(_: Any) -> None:
        gate.wait(DEADLINE)
        record.add("first")

    def quick(_: Any) -> None:
        record.add("second")
        early.set()

    def one(x):
        ORDERED_KINDS[first_kind](slow, jnp.sum(x))
        return x

    def two(x):
        ORDERED_KINDS[second_kind](quick, jnp.sum(x))
        return x

    programs = [layout.compile(f) for layout, f in ((first, one), (second, two))]

    def dispatch_second() -> None:
        dispatched.wait(DEADLINE)
        programs[1](second.same(X))

    threads = [
        threading.Thread(target=lambda: (programs[0](first.same(X)), dispatched.set())),
        threading.Thread(target=dispatch_second),
    ]
    for thread in threads:
        thread.start()
    dispatched.wait(5.0)  # a dispatch may block, then the second cannot come before the first in any case
    came_early = early.wait(0.2)
    gate.set()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "a dispatch did not return after the gate had opened"
    hcb.barrier_wait()
    assert not came_early, "the second program's callback ran while the first program's waited"
    counts = [record.args.count(label) for label in ("first", "second")]
    assert counts == [len(first.callers), len(second.callers)], f"callbacks of each program: {counts}"


@pytest.mark.contract("H5")
@pytest.mark.parametrize("layout", [helpers.JIT, helpers.PMAP], ids=helpers.named)
def test_order_within_each_of_many_threads(layout: helpers.Layout, devices: list[jax.Device]) -> None:
    record, barrier = Record(), threading.Barrier(4)

    def program(x):
        for step in "ab":
            hcb.id_tap(record.labelled(step), x, tap_with_device=True)
            hcb.call(record.caller(step.upper(), lambda _: None), x, call_with_device=True)
        return x

    compiled = layout.compile(program)

    def work(thread: int) -> None:
        barrier.wait(DEADLINE)
        for n in range(5):
            compiled(layout.same(np.array([thread, n], np.float32)))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    [thread.start() for thread in threads]
    [thread.join(DEADLINE) for thread in threads]
    hcb.barrier_wait()
    for device in [devices[i] for i in layout.callers]:
        for thread in range(4):
            got = [(int(s.arg[1]), s.label) for s in record.on(device) if s.arg[0] == thread]
            expected = [(n, step) for n in range(5) for step in "aAbB"]
            assert got == expected, f"thread {thread} on {device}: {got}, but should be {expected}"


@pytest.mark.contract("H4")
@pytest.mark.parametrize("layout", helpers.MAIN_LAYOUTS, ids=helpers.named)
def test_while_condition_decided_by_a_call(layout: helpers.Layout) -> None:
    record = Record()

    def program(x):
        def condition(state):
            wanted = jax.ShapeDtypeStruct((), np.bool_)
            return hcb.call(record.caller("cond", lambda i: np.bool_(i < 3)), state[0], result_shape=wanted)

        def body(state):
            return hcb.id_tap(record.labelled("body"), state[0]) + 1, state[1] * 2

        return jax.lax.while_loop(condition, body, (0, x))[1]

    outs = layout.run(program, layout.same(X))
    hcb.barrier_wait()
    expected = [("cond", 0), ("body", 0), ("cond", 1), ("body", 1), ("cond", 2), ("body", 2), ("cond", 3)]
    check_order(record, layout.callers, expected, "while with a call as its condition")
    for out in outs:
        helpers.equal(out, X * 8, "result of the loop")


def loop_of(kind: str, body: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    if kind == "scan":
        return lambda x: lax.scan(lambda c, i: (body(c, i), None), x, jnp.arange(4))[0]
    if kind == "fori":
        return lambda x: lax.fori_loop(0, 4, lambda i, c: body(c, i), x)
    if kind == "scan_of_scan":
        inner = lambda c, i: lax.scan(lambda d, j: (body(d, 2 * i + j), None), c, jnp.arange(2))
        return lambda x: lax.scan(inner, x, jnp.arange(2))[0]
    if kind == "scan_checkpoint_policy_all":
        saved = jax.checkpoint(body, policy=jax.checkpoint_policies.everything_saveable)
        return lambda x: lax.scan(lambda c, i: (saved(c, i), None), x, jnp.arange(4))[0]
    return lambda x: lax.scan(lambda c, i: (jax.jit(body)(c, i), None), x, jnp.arange(4))[0]


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (1.0,))[1],
    "grad": jax.grad,
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0)[0],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](1.0),
    "jit_grad": lambda f: jax.jit(jax.grad(f)),
}


IN_LOOPS: dict[str, Callable[[Record, Any, Any], Any]] = {
    "tap, unused": lambda record, c, i: (hcb.id_tap(record.labelled("t"), i), (c, i))[1],
    "tap of the carry": lambda record, c, i: hcb.id_tap(lambda arg, _: record.add(arg[1], label="t"), (c, i)),
    "call, unused": lambda record, c, i: (hcb.call(record.caller("t"), i, result_shape=UNCHANGED), (c, i))[1],
    "io": lambda record, c, i: (c, hcb.io_callback(record.caller("t"), UNCHANGED, i)),
    "io, unused": lambda record, c, i: (hcb.io_callback(record.caller("t"), UNCHANGED, i), (c, i))[1],
    "ordered io": lambda record, c, i: (c, hcb.io_callback(record.caller("t"), UNCHANGED, i, ordered=True)),
    "ordered io, unused": lambda record, c, i: (
        hcb.io_callback(record.caller("t"), UNCHANGED, i, ordered=True),
        (c, i),
    )[1],
}


@pytest.mark.contract("H6", "X3")
@pairwise(
    derivative=DERIVATIVES,
    kind=("scan", "fori", "scan_jit", "scan_checkpoint_policy_all", "scan_of_scan"),
    callback=IN_LOOPS,
)
def test_loop_bodies_under_derivatives(derivative: str, kind: str, callback: str) -> None:
    """JAX loses its own callbacks here: an effect in a scan body whose result nobody uses."""
    record = Record()
    if kind == "scan_checkpoint_policy_all" and "io" in callback:
        pytest.skip("JAX refuses the effects of `io_callback` in a checkpoint")

    def body(carry, i):
        carry, i = IN_LOOPS[callback](record, carry, i)
        return jnp.sin(carry) * (1.0 + i)

    plain = DERIVATIVES[derivative](loop_of(kind, lambda c, i: jnp.sin(c) * (1.0 + i)))(0.5)
    got = helpers.finish(DERIVATIVES[derivative](loop_of(kind, body))(0.5))
    seen = emitted(record)
    assert (sorted(seen) if callback.startswith("io") else seen) == numbered("t", 4), f"{derivative} of {kind}: {seen}"
    np.testing.assert_allclose(got, plain, rtol=1e-6, err_msg=f"{derivative} of {kind} with {callback}")


@pytest.mark.contract("H1", "H5")
def test_more_taps_in_one_program_than_have_numbered_targets() -> None:
    """Each has its own function, on both sides of the number of FFI targets."""
    record = Record()
    operands = np.arange(514, dtype=np.float32)
    taps = [record.labelled(number) for number in range(len(operands))]
    # Operands of their own, and no computation between: XLA:CPU compiles that in a twentieth of the time.
    program = jax.jit(lambda *xs: [hcb.id_tap(tap, x) for tap, x in zip(taps, xs, strict=True)])
    for _ in range(2):
        results = helpers.finish(program(*operands))
        assert np.array_equal(np.stack(results), operands)
    assert record.labels == record.values == [*range(len(operands))] * 2


@pytest.mark.contract("H5")
def test_a_call_begins_when_the_taps_before_it_have_ended() -> None:
    seen: list[str] = []
    gate = threading.Event()

    def tap(arg: Any, transforms: Any) -> None:
        seen.append("begins")
        gate.wait(0.02)
        seen.append("ends")

    @jax.jit
    def program(x: Any) -> Any:
        x = hcb.id_tap(tap, hcb.id_tap(tap, x))
        return hcb.call(lambda arg: (seen.append("call"), arg)[1], x, result_shape=x)

    # The first values of a tap may take another way than those after them.
    for _ in range(3):
        seen.clear()
        helpers.finish(program(np.float32(1)))
        assert seen == [*["begins", "ends"] * 2, "call"]


@pytest.mark.contract("H4")
@pytest.mark.parametrize("layout", helpers.COMPILED, ids=helpers.named)
def test_a_call_without_operands_runs_each_time(layout: helpers.Layout) -> None:
    record = Record()
    compiled = layout.compile(
        lambda x: (hcb.call(record.caller(result=lambda _: None), ()), hcb.id_tap(record.tap, ()), x)[2]
    )
    helpers.finish([compiled(layout.same(X)) for _ in range(3)])
    assert record.args == [()] * (6 * len(layout.callers)), f"{len(record.args)} callbacks: {record.args}"
