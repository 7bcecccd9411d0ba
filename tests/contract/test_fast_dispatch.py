"""H5, H13, H15: programs that JAX's fast dispatch runs, from their second or third run on, keep every promise.

The other tests run most of their programs once or twice, which JAX dispatches in Python.
"""

from __future__ import annotations

import re
import threading
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import DEADLINE

import hostcb as hcb
from hostcb._runtime.executions.executions import ExecutionTracker, tracker

SCALAR = jax.ShapeDtypeStruct((), np.float32)
X = np.float32(3)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs of the fast dispatches that begin."""
    programs: list[Any] = []
    plain = ExecutionTracker.begin_fast

    def begin_fast(self: Any, program: Any, *others: Any) -> Any:
        programs.append(program)
        return plain(self, program, *others)

    monkeypatch.setattr(ExecutionTracker, "begin_fast", begin_fast)
    return programs


def warm(program: Callable[..., Any], *operands: Any) -> Any:
    """Run a program until the fast dispatch takes it, and wait for its callbacks."""
    for _ in range(3):
        jax.block_until_ready(program(*operands))
    hcb.barrier_wait()
    return program


def in_thread(run: Callable[[], Any]) -> threading.Thread:
    (thread := threading.Thread(target=run, daemon=True)).start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(DEADLINE)
    return not thread.is_alive()


PROGRAMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "tap": lambda see: lambda x: {"out": hcb.id_tap(lambda v, _: see(v), x) + 1},
    "print": lambda see: lambda x: {"out": (hcb.id_print(x, output_stream=types.SimpleNamespace(write=see)), x + 1)[1]},
    "taps_in_a_loop": lambda see: (
        lambda x: {"out": jax.lax.fori_loop(0, 3, lambda _, c: hcb.id_tap(lambda v, t: see(v), c), x) + 1}
    ),
    "call": lambda see: lambda x: {"out": hcb.call(lambda v: (see(v), v)[1], x, result_shape=SCALAR) + 1},
    "io": lambda see: lambda x: {"out": hcb.io_callback(lambda v: (see(v), v)[1], SCALAR, x, ordered=True) + 1},
    "unordered_io": lambda see: lambda x: {"out": hcb.io_callback(lambda v: (see(v), v)[1], SCALAR, x) + 1},
    "debug": lambda see: lambda x: (hcb.debug.callback(see, x), {"out": x + 1})[1],
    "ordered_debug": lambda see: lambda x: (hcb.debug.callback(see, x, ordered=True), {"out": x + 1})[1],
}


class Armed:
    """A function that returns its operand, or fails."""

    on = False

    def __call__(self, value: Any) -> Any:
        if self.on and value in (1, 3, 4):
            raise ValueError("armed")
        return value


@pytest.mark.contract("H5")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fast_dispatch_runs_programs_on_one_device(name: str, begun: list[Any]) -> None:
    seen: list[Any] = []
    program = jax.jit(PROGRAMS[name](seen.append))
    results = [program(X) for _ in range(6)]
    hcb.barrier_wait()
    assert len(begun) >= 3, "JAX dispatched the program in Python"
    assert len(seen) == 6 * (3 if name == "taps_in_a_loop" else 1)
    assert all(list(each) == ["out"] and float(each["out"]) == 4 for each in results)
    assert tracker.live() == []


@pytest.mark.contract("H5", "H9")
@pytest.mark.parametrize("kind", ["tap", "call", "ordered_debug", "debug", "unordered_io"])
@pytest.mark.parametrize("count", [2, 8])
def test_the_fast_dispatch_runs_programs_on_several_devices(count: int, kind: str, begun: list[Any]) -> None:
    seen: list[Any] = []
    spread = jax.pmap(lambda x: PROGRAMS[kind](lambda v: seen.append(int(v)))(x)["out"], devices=jax.devices()[:count])
    alone = jax.jit(PROGRAMS["tap"](lambda v: seen.append(100)))
    for number in range(6):
        out = spread(np.arange(count, dtype=np.float32))
        assert [float(each) for each in out] == list(range(1, count + 1))
        alone(jax.device_put(X, jax.devices()[count - 1]))
    hcb.barrier_wait()
    assert len(begun) >= 6, "JAX dispatched the programs in Python"
    assert sorted(seen) == sorted([*range(count), 100] * 6)
    if kind not in ("debug", "unordered_io"):
        # On the last device the two programs alternate.
        assert [each for each in seen if each in (count - 1, 100)] == [count - 1, 100] * 6
    assert tracker.live() == []


@pytest.mark.contract("H5")
def test_programs_of_which_hostcb_knows_too_little_are_dispatched_in_python(begun: list[Any]) -> None:
    seen: list[Any] = []
    foreign = jax.jit(lambda x: hcb.id_tap(lambda v, _: seen.append(v), jax.pure_callback(lambda v: v, SCALAR, x)) + 1)
    cholesky = jax.jit(lambda x: jnp.linalg.cholesky(hcb.id_tap(lambda v, _: None, jnp.eye(3) * x)))
    endless = jax.jit(
        lambda x: jax.lax.while_loop(lambda c: c < 5, lambda c: hcb.call(lambda v: v, c, result_shape=c) + 1, x)
    )
    for _ in range(4):
        foreign(X), cholesky(X), endless(X)
    hcb.barrier_wait()
    assert begun == [] and len(seen) == 4


@pytest.mark.contract("H5")
@pytest.mark.parametrize("kind", ["tap", "call"])
def test_a_program_that_waits_for_its_operand_comes_before_later_ones(kind: str, begun: list[Any]) -> None:
    """Its dispatch returns before it runs. Another thread, or the same one, then starts a quicker one."""
    seen: list[Any] = []
    gate = threading.Event()

    def slow(value: Any) -> Any:
        assert gate.wait(DEADLINE)
        return value

    # A callback on another device holds the operand back.
    other = jax.devices()[1]
    held = jax.jit(lambda x: jax.pure_callback(slow, SCALAR, x))
    move = jax.jit(lambda x: x + 1)
    early = warm(jax.jit(PROGRAMS["tap"](lambda v: seen.append("early"))), jax.device_put(X, jax.devices()[0]))
    late = jax.jit(PROGRAMS[kind](lambda v: seen.append("late")))
    gate.set()
    warm(late, X), jax.block_until_ready(move(held(jax.device_put(X, other))))
    gate.clear(), seen.clear(), begun.clear()

    operand: list[Any] = []
    producer = in_thread(lambda: operand.append(held(jax.device_put(X, other))))
    started = threading.Event()

    def start_early() -> None:
        producer.join(DEADLINE)
        early(jax.device_put(operand[0], jax.devices()[0]))
        started.set()

    def start_late() -> None:
        assert started.wait(DEADLINE)
        late(X)

    threads = [in_thread(start_early), in_thread(start_late)]
    # Nothing may come before the operand.
    threads[1].join(0.3)
    assert seen == [], f"{seen} ran before the operand of the first program was ready"
    gate.set()
    assert ended(producer) and all(map(ended, threads))
    hcb.barrier_wait()
    assert seen == ["early", "late"] and len(begun) == 2


@pytest.mark.contract("X3", "X4")
@pytest.mark.parametrize("kind", ["debug", "unordered_io"])
def test_a_program_without_order_waits_for_no_other(kind: str, begun: list[Any]) -> None:
    entered, release, seen = threading.Event(), threading.Event(), []

    def hold(value: Any) -> Any:
        if value == 7:
            entered.set()
            release.wait(DEADLINE)
        return value

    blocked = warm(jax.jit(lambda x: hcb.call(hold, x, result_shape=SCALAR)), X)
    free = warm(jax.jit(PROGRAMS[kind](seen.append)), X)
    begun.clear(), seen.clear()
    holder = in_thread(lambda: jax.block_until_ready(blocked(np.float32(7))))
    assert entered.wait(DEADLINE)
    try:
        results = [free(X)["out"] for _ in range(3)]
        assert [float(each) for each in results] == [4, 4, 4] and len(seen) == 3
    finally:
        release.set()
    assert ended(holder) and len(begun) == 4
    hcb.barrier_wait()


@pytest.mark.contract("H13")
def test_a_barrier_waits_for_a_fast_dispatch_of_another_thread(begun: list[Any]) -> None:
    """The barrier comes in the middle of the program: after its first tap, before its last."""
    seen: list[str] = []
    first = threading.Event()

    def begin(value: Any, _: Any) -> None:
        seen.append("first")
        first.set()

    def step(x: Any) -> Any:
        x = hcb.id_tap(begin, x)
        x = jax.lax.fori_loop(0, 300, lambda _, c: jnp.sin(c @ c), jnp.full((160, 160), x))[0, 0]
        return hcb.id_tap(lambda v, _: seen.append("last"), x)

    program = warm(jax.jit(step), X)
    seen.clear(), begun.clear(), first.clear()
    thread = in_thread(lambda: program(X))
    assert first.wait(DEADLINE)
    hcb.barrier_wait()
    assert seen == ["first", "last"] and len(begun) == 1 and ended(thread)


@pytest.mark.contract("H12")
@pytest.mark.parametrize("outer", ["tap", "call", "pure"])
def test_a_nested_program_runs_its_taps_at_once(outer: str, begun: list[Any]) -> None:
    seen: list[Any] = []
    inner = jax.jit(lambda x: hcb.id_tap(lambda v, _: seen.append("inner"), x) + 1)

    def run_inner(value: Any, _: Any = None) -> Any:
        # The value on its way: the program is started in the middle of a callback.
        inner(X)
        seen.append("outer")
        return value

    programs = {
        "tap": lambda x: hcb.id_tap(run_inner, x) + 1,
        "call": lambda x: hcb.call(run_inner, x, result_shape=SCALAR) + 1,
        "pure": lambda x: hcb.pure_callback(run_inner, SCALAR, x) + 1,
    }
    warm(inner, X)
    program = warm(jax.jit(programs[outer]), X)
    seen.clear(), begun.clear()
    for _ in range(3):
        program(X)
    hcb.barrier_wait()
    assert seen == ["inner", "outer"] * 3 and len(begun) >= 3


@pytest.mark.contract("H15")
@pytest.mark.parametrize("kind", ["call", "io", "unordered_io", "ordered_debug"])
def test_a_failure_in_a_fast_dispatch_is_the_same_as_in_any_other(kind: str, begun: list[Any]) -> None:
    function, seen = Armed(), []

    def step(x: Any) -> Any:
        out = PROGRAMS[kind](function)(x)["out"]
        out = hcb.id_tap(lambda v, _: seen.append("tap"), out)
        return hcb.call(lambda v: (seen.append("call"), v)[1], out, result_shape=SCALAR)

    def end(program: Any) -> tuple[str, Any]:
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            program(X)
        with pytest.raises(hcb.CallbackException) as reported:
            hcb.barrier_wait()
        assert len(reported.value.failures) == 1
        said = re.search(r"raised .*\nThe computation has ended.*", str(caught.value))
        assert said is not None
        return said[0], caught.value.__cause__

    # JAX never lets a function whose first run fails take the fast dispatch.
    function.on = True
    in_python = end(jax.jit(lambda x: step(x)))
    assert begun == []
    function.on = False
    program = warm(jax.jit(step), X)
    for _ in range(2):
        begun.clear(), seen.clear()
        function.on = True
        natively = end(program)
        assert seen == [] and len(begun) == 1
        assert natively[0] == in_python[0]
        assert isinstance(natively[1], ValueError) and natively[1].args == ("armed",)
        function.on = False
        assert float(program(X)) == 4
        hcb.barrier_wait()
        assert seen == ["tap", "call"]
    assert tracker.live() == []


@jax.tree_util.register_pytree_node_class
class Positive:
    """A node of the user that looks at its leaf."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.leaf,), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> Positive:
        (leaf,) = leaves
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            built.append(float(leaf))
            hcb.barrier_wait()
        return cls(leaf)


built: list[float] = []


@pytest.mark.contract("H13")
def test_a_barrier_in_the_users_nodes_waits_for_the_program(begun: list[Any]) -> None:
    seen: list[Any] = []
    program = warm(jax.jit(lambda x: Positive(hcb.id_tap(lambda v, _: seen.append(float(v)), x) + 1)), X)
    seen.clear(), built.clear(), begun.clear()
    program(X)
    assert seen == [3] and built == [4] and len(begun) == 1


@pytest.mark.contract("H13")
def test_a_program_beside_jaxs_callbacks_leaves_no_execution_behind(begun: list[Any]) -> None:
    """Its end is a token of the runtime, which becomes ready only when somebody waits for it."""
    program = jax.jit(lambda x: (jax.debug.callback(lambda v: None, x), hcb.io_callback(lambda v: v, SCALAR, x))[1])
    assert ([float(program(X)) for _ in range(3)], tracker.live(), begun) == ([3, 3, 3], [], [])
    jax.effects_barrier()
