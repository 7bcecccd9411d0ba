"""X3, X4, X5, H5, H13: one order for all ordered kinds on each device, and what barriers wait for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import DEADLINE, Record
from support.pairwise import in_turns, pairwise

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
INT = jax.ShapeDtypeStruct((), np.int32)
LAYOUTS = {layout.name: layout for layout in helpers.MAIN_LAYOUTS}
# How long something that must not happen is waited for. In seconds.
GRACE = 0.2


class Log:
    """What ordered callbacks of every kind saw: who (the operand tells the device) and which."""

    def __init__(self) -> None:
        self.record = Record()
        self._turns = itertools.count()

    def add(self, who: Any, which: Any) -> None:
        self.record.add((int(who), int(which)))

    def emit(self, who: Any, which: Any) -> None:
        """One callback; the kinds take turns, and nobody uses the results."""
        who, which = jnp.int32(who), jnp.int32(which)
        turn = next(self._turns) % 5
        if turn == 0:
            hcb.io_callback(self.add, None, who, which, ordered=True)
        elif turn == 1:
            hcb.id_tap(lambda arg, _: self.add(*arg), (who, which))
        elif turn == 2:
            hcb.debug.callback(self.add, who, which, ordered=True)
        elif turn == 3:
            hcb.call(lambda arg: (self.add(*arg), arg[1])[1], (who, which), result_shape=INT)
        else:
            hcb.io_callback(lambda a, b: (self.add(a, b), b)[1], INT, who, which, ordered=True)

    def of(self, who: int) -> list[int]:
        return [which for one, which in self.record.args if one == who]


def straight(log: Log, who: Any, start: int) -> None:
    for n in range(10):
        log.emit(who, start + n)


def in_loops(log: Log, who: Any, start: int) -> None:
    def body(c, i):
        for n in range(5):
            log.emit(who, start + 5 * i + n)
        return c, None

    lax.scan(body, who * 1, jnp.arange(2))
    lax.while_loop(lambda i: i < 2, lambda i: ([log.emit(who, start + 10 + 6 * i + n) for n in range(6)], i + 1)[1],
                   who * 0)  # fmt: skip
    five = lambda who, start: [log.emit(who, start + n) for n in range(5)].clear()
    lax.cond(who > -1, lambda: five(who, start + 22), lambda: None)
    jax.jit(lambda who: five(who, start + 27))(who)


LENGTH = {straight: 10, in_loops: 32}


@pytest.mark.contract("H5", "X3", "X4")
@in_turns(("layout", "program"), [*helpers.MAIN_LAYOUTS, helpers.JIT_DEVICE_5, helpers.SHARD_MAP_2D], LENGTH)
def test_all_ordered_kinds_share_one_order(program: Any, layout: helpers.Layout) -> None:
    log = Log()

    def compiled(start):
        return layout.compile(lambda x: (program(log, x[0].astype(np.int32), start), x + 1)[1])

    values = [X + 100 * n for n in range(len(layout.callers))]
    count = LENGTH[program]
    programs = [compiled(start * count) for start in range(3)]
    outs = [programs[n % 3](values) for n in range(6)]
    helpers.finish(outs)
    expected = [n + step % 3 * count for step in range(6) for n in range(count)]
    for n in range(len(layout.callers)):
        assert log.of(100 * n) == expected, f"order on device {n} of {layout.name}"


@pytest.mark.contract("H5", "X3")
def test_order_when_the_devices_change_between_programs(devices: list[Any]) -> None:
    """Guards against #25671 (aborts) and the flaky order of rotating meshes of two devices."""
    log = Log()
    outs, expected = [], {n: [] for n in range(8)}
    sets = [(0,), (0, 1, 2, 3), (0, 1), (1, 2), (2, 3), (3, 0), tuple(range(8)), (0,), (4, 5, 6, 7), (5,), (0, 1)] * 2
    for step, indices in enumerate(sets):
        mesh = helpers.mesh_of([devices[i] for i in indices])

        def program(x, step=step):
            for n in range(3):
                log.emit(x[0], 3 * step + n)
            return x

        who = np.asarray(indices, np.int32)
        outs.append(jax.jit(helpers.shard_map(program, mesh))(helpers.sharded(who, mesh)))
        for i in indices:
            expected[i] += [3 * step + n for n in range(3)]
    helpers.finish(outs)
    for i in range(8):
        assert log.of(i) == expected[i], f"order on device {i}: {log.of(i)}"


@pytest.mark.contract("X3", "X4")
def test_jaxs_own_ordered_callbacks_keep_their_order_beside_ours() -> None:
    ours, theirs = Record(), Record()

    @jax.jit
    def program(x):
        for n in range(4):
            hcb.io_callback(ours.add, None, n, ordered=True)
            jax.experimental.io_callback(theirs.add, None, n, ordered=True)
            jax.debug.callback(theirs.add, 10 + n, ordered=True)
            hcb.debug.callback(ours.add, 10 + n, ordered=True)
        return x

    for _ in range(3):
        jax.block_until_ready(program(X))
    jax.effects_barrier()
    assert ours.values == [n + k for n in range(4) for k in (0, 10)] * 3
    assert [n for n in theirs.values if n < 10] == [0, 1, 2, 3] * 3


BARRIERS = {"barrier_wait": hcb.barrier_wait, "effects_barrier": jax.effects_barrier}
EFFECTS: dict[str, Callable[[Any, Any], Any]] = {
    "io": lambda f, x: hcb.io_callback(f, None, x),
    "ordered_io": lambda f, x: hcb.io_callback(f, None, x, ordered=True),
    "debug": lambda f, x: hcb.debug.callback(f, x),
    "ordered_debug": lambda f, x: hcb.debug.callback(f, x, ordered=True),
    "tap": lambda f, x: hcb.id_tap(lambda x, _: f(x), x),
    "buffer": lambda f, x: hcb.buffer_callback(lambda ctx, out, x: f(x), (), has_side_effect=True)(x),
}


@pytest.mark.contract("H13", "X3", "X4")
@pairwise(name=("pmap", "shard_map", "mesh"), effect=EFFECTS, barrier=BARRIERS)
def test_barriers_wait_for_effects(name: str, effect: str, barrier: str) -> None:
    layout = LAYOUTS[name]
    if effect == "buffer" and layout is helpers.MESH:
        pytest.skip("refused while lowering; see test_buffer_callback.py")
    record, gate, returned, started = Record(), threading.Event(), threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def slow(x: Any) -> None:
        started.set()
        gate.wait(DEADLINE)
        record.add(0)

    compiled = layout.compile(lambda x: (EFFECTS[effect](slow, x), x + 1)[1])

    def work() -> None:
        # `effects_barrier` waits for what its own thread started.
        try:
            for _ in range(2):
                compiled(layout.same(X))
            BARRIERS[barrier]()
            record.add("returned")
        except BaseException as error:
            problems.append(error)
        returned.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(DEADLINE), f"nothing was called: {problems}"
    early = returned.wait(GRACE)
    gate.set()
    thread.join(DEADLINE)
    assert not thread.is_alive() and not problems, f"problems: {problems}"
    assert not early, "the barrier returned before the callbacks did"
    assert record.args == [0] * (2 * len(layout.callers)) + ["returned"], f"after the barrier came {record.args}"


@pytest.mark.contract("H13")
def test_effects_barrier_waits_for_a_callback_of_jax_also_after_taps_on_its_devices(devices: list[Any]) -> None:
    gate, started, record, in_time = threading.Event(), threading.Event(), Record(), []

    def held(x: Any) -> None:
        started.set()
        gate.wait(DEADLINE)
        record.add(x)

    compiled = helpers.SHARD_MAP.compile(lambda x: (jax.debug.callback(held, x), x + 1)[1])

    def work() -> None:
        compiled(helpers.SHARD_MAP.same(X))
        # Outside jit: a program would wait for the callbacks, and so would the barrier.
        for device in devices:
            hcb.id_tap(lambda *_: None, jax.device_put(X, device))
        jax.effects_barrier()
        in_time.append(len(record.all))

    # Compiled beforehand: the barrier should begin while the callbacks are held.
    gate.set()
    work()
    gate.clear(), started.clear()
    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(DEADLINE)
    thread.join(GRACE)
    gate.set()
    thread.join(DEADLINE)
    assert in_time == [len(devices), 2 * len(devices)]


@pytest.mark.contract("H13", "X2")
def test_effects_barrier_does_not_raise_what_failed() -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("the reason")

    for bind in EFFECTS.values():
        for layout in (helpers.JIT, helpers.PMAP):
            compiled = layout.compile(lambda x, bind=bind: (bind(fails, x), x)[1])
            try:
                jax.block_until_ready(compiled(layout.same(X)))
            except jax.errors.JaxRuntimeError as error:
                assert "the reason" in str(error)
            for _ in range(2):
                jax.effects_barrier()
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    assert len(caught.value.failures) >= 2 * len(EFFECTS)
    jax.effects_barrier()
    hcb.barrier_wait()
