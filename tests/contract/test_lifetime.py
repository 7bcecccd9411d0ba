"""H18: equal callbacks are compiled once, and nothing outlives the executables that use it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers
from support.helpers import Record
from support.sessions import rounds
from support.subprocesses import run_program

import hostcb as hcb

pytestmark = pytest.mark.contract("H18")


class Compilations:
    def __init__(self) -> None:
        self.count = 0

    def listener(self, event: str, duration: float, **_: Any) -> None:
        if "backend_compile" in event:
            self.count += 1


@pytest.fixture
def compilations() -> Iterator[Compilations]:
    counter = Compilations()
    jax.monitoring.register_event_duration_secs_listener(counter.listener)
    yield counter
    jax.monitoring.unregister_event_duration_listener(counter.listener)


class Model:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def tap(self, arg: Any, transforms: Any) -> None:
        self.seen.append(arg)

    def double(self, arg: Any) -> Any:
        return arg * 2


def test_one_trace_and_one_executable_for_many_runs(compilations: Compilations) -> None:
    traces: list[int] = []

    @jax.jit
    def program(x):
        traces.append(0)
        return hcb.call(np.negative, hcb.id_tap(lambda a, t: None, x), result_shape=x)

    program(jnp.float32(1))
    first = compilations.count
    for n in range(20):
        program(jnp.float32(n))
    assert len(traces) == 1, f"{len(traces)} traces"
    assert program._cache_size() == 1, f"{program._cache_size()} executables"
    assert compilations.count == first, f"{compilations.count - first} more compilations"


MODEL = Model()
EAGER = {
    "tap_of_a_method": lambda x: hcb.id_tap(MODEL.tap, x),
    "call_of_a_method": lambda x: hcb.call(MODEL.double, x, result_shape=x),
    "call_of_a_function": lambda x: hcb.call(np.negative, x, result_shape=x),
    "print": lambda x: hcb.id_print(x, what="w", output_stream=STREAM),
}


class Stream:
    def write(self, text: str) -> None: ...


STREAM = Stream()


@pytest.mark.parametrize("name", EAGER)
def test_equal_callbacks_make_equal_primitives(name: str) -> None:
    first, second = (jax.make_jaxpr(EAGER[name])(1.0).eqns[-1] for _ in range(2))
    assert first.primitive is second.primitive
    assert first.params == second.params, f"parameters of equal callbacks: {first.params} and {second.params}"
    assert hash(first.params["callback"]) == hash(second.params["callback"])
    other = jax.make_jaxpr(lambda x: hcb.id_tap(lambda a, t: None, x))(1.0).eqns[-1]
    assert other.params != first.params


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in EAGER for kind in ("eager", "loop", "cond")] + [("tap_of_a_method", "vmap")],
)
def test_using_a_callback_again_compiles_nothing(name: str, kind: str, compilations: Compilations) -> None:
    function, x = EAGER[name], jnp.float32(1)
    use = {
        "eager": lambda: function(x),
        "loop": lambda: jax.lax.fori_loop(0, 2, BODIES[name], x),
        "cond": lambda: jax.lax.cond(x > 0, function, negated, x),
        "vmap": lambda: jax.vmap(function)(jnp.arange(2.0)),
    }[kind]
    helpers.finish(use())
    first = compilations.count
    for _ in range(3):
        helpers.finish(use())
    assert compilations.count == first, f"{compilations.count - first} compilations for what had been compiled"


# Kept, since JAX's caches know loop bodies by identity.
BODIES = {name: lambda i, x, function=function: function(x) for name, function in EAGER.items()}


def negated(x: Any) -> Any:
    return -x


def test_functions_jitted_anew_share_nothing_by_mistake() -> None:
    """Equal code with different callbacks must not be mixed up by any cache."""
    outs = [jax.jit(lambda x, n=n: hcb.call(lambda a: a * 0 + n, x, result_shape=x))(jnp.float32(1)) for n in range(5)]
    assert [float(out) for out in outs] == [0.0, 1.0, 2.0, 3.0, 4.0]

    @jax.jit
    def program(x, flag):
        return hcb.call(np.sin, x, result_shape=x) + hcb.call(np.cos, x, result_shape=x)

    np.testing.assert_allclose(program(jnp.float32(0.5), 1), np.sin(0.5) + np.cos(0.5), rtol=1e-6)


def test_device_flag_distinguishes_callbacks() -> None:
    record = Record()
    for wanted in (False, True, False):
        hcb.id_tap(record.tap, 1.0, tap_with_device=wanted)
    hcb.barrier_wait()
    assert [seen.device is not None for seen in record.all] == [False, True, False]


class Payload:
    """Something that a closure holds and that can be watched."""


WAYS = [
    "jit_tap", "jit_call", "eager_tap", "eager_call", "eager_pure", "eager_io", "eager_debug", "mesh_tap", "mesh_call",
    "vmap_tap", "grad_tap", "vmap_of_jit", "jit_of_vmap_of_jit", "grad_of_jit", "jit_of_grad_of_jit",
    "vmap_of_grad_of_jit", "recomputed", "debug_of_vmap_of_jit", "debug_of_grad_of_jit",
    "debug_of_vmap_of_grad_of_jit", "debug_recomputed",
]  # fmt: skip
# Here JAX itself keeps the executables of dropped functions, those without any callback too.
KEPT_BY_JAX = ["pmap_tap", "pmap_call", "scan_tap"]


def use_once(way: str) -> weakref.ref[Payload]:
    payload = Payload()

    def tap(arg: Any, transforms: Any) -> None:
        assert payload is not None

    def function(arg: Any) -> Any:
        assert payload is not None
        return arg

    call = lambda x: hcb.call(function, x, result_shape=x)
    tapped = lambda x: hcb.id_tap(tap, x)
    shown = lambda x: (hcb.debug.callback(function, x), x)[1]
    mesh = helpers.mesh_of(jax.devices())

    def recomputed(inner: Any) -> Any:
        """The backward pass runs the function again."""
        return jax.jit(jax.grad(jax.checkpoint(lambda x: jnp.sin(jax.jit(inner)(x)))))(1.0)

    {
        "jit_tap": lambda: jax.jit(tapped)(1.0),
        "jit_call": lambda: jax.jit(call)(jnp.float32(1)),
        "eager_tap": lambda: tapped(1.0),
        "eager_call": lambda: call(jnp.float32(1)),
        "eager_pure": lambda: hcb.pure_callback(function, jnp.float32(1), jnp.float32(1)),
        "eager_io": lambda: hcb.io_callback(function, jnp.float32(1), jnp.float32(1)),
        "eager_debug": lambda: shown(jnp.float32(1)),
        "pmap_tap": lambda: jax.pmap(tapped)(jnp.ones(8)),
        "mesh_tap": lambda: jax.jit(tapped)(helpers.sharded(np.ones(8, np.float32), mesh)),
        "pmap_call": lambda: jax.pmap(call)(jnp.ones(8)),
        "mesh_call": lambda: jax.jit(call)(helpers.sharded(np.ones(8, np.float32), mesh)),
        "vmap_tap": lambda: jax.vmap(tapped)(jnp.ones(2)),
        "scan_tap": lambda: jax.lax.scan(lambda c, x: (c, tapped(x)), 0, jnp.ones(2)),
        "grad_tap": lambda: jax.grad(tapped)(1.0),
        "vmap_of_jit": lambda: jax.vmap(jax.jit(tapped))(jnp.ones(2)),
        "jit_of_vmap_of_jit": lambda: jax.jit(jax.vmap(jax.jit(tapped)))(jnp.ones(2)),
        "debug_of_vmap_of_jit": lambda: jax.vmap(jax.jit(shown))(jnp.ones(2)),
        "grad_of_jit": lambda: jax.grad(jax.jit(tapped))(1.0),
        "jit_of_grad_of_jit": lambda: jax.jit(jax.grad(jax.jit(tapped)))(1.0),
        "vmap_of_grad_of_jit": lambda: jax.vmap(jax.grad(jax.jit(tapped)))(jnp.ones(2)),
        "debug_of_grad_of_jit": lambda: jax.grad(jax.jit(shown))(1.0),
        "debug_of_vmap_of_grad_of_jit": lambda: jax.vmap(jax.grad(jax.jit(shown)))(jnp.ones(2)),
        "recomputed": lambda: recomputed(tapped),
        "debug_recomputed": lambda: recomputed(shown),
    }[way]()
    hcb.barrier_wait()
    return weakref.ref(payload)


@pytest.mark.parametrize("way", WAYS + KEPT_BY_JAX)
def test_a_callback_dies_with_its_executable(way: str) -> None:
    refs = [use_once(way) for _ in range(2)]
    if way in KEPT_BY_JAX:
        jax.clear_caches()

    def all_dead() -> bool:
        gc.collect()
        return not any(ref() for ref in refs)

    # A thread of the runtime may hold the last program a moment longer.
    helpers.wait_until(all_dead)


def test_a_pure_callback_dies_with_its_executable_without_a_barrier() -> None:
    """Nobody waits at a barrier for what has no effect."""

    def use() -> weakref.ref[Payload]:
        payload = Payload()
        function = jax.jit(lambda x: hcb.pure_callback(lambda x: payload and x, x, x))
        assert function(jnp.float32(1)) == 1
        return weakref.ref(payload)

    refs = [use() for _ in range(3)]

    def all_dead() -> bool:
        gc.collect()
        return not any(ref() for ref in refs)

    helpers.wait_until(all_dead)


def test_a_callback_whose_last_values_wait_behind_another_tap_runs_for_them_and_then_dies() -> None:
    gate, ran = threading.Event(), []
    holding = jax.jit(lambda x: hcb.id_tap(lambda *_: gate.wait(helpers.DEADLINE), x))

    def dropped() -> weakref.ref[Payload]:
        payload = Payload()
        program = jax.jit(lambda x: hcb.id_tap(lambda *_, payload=payload: ran.append(payload is not None), x))
        gate.set()
        # The first values may take another way into the queue than the later ones.
        for run in (holding, holding, program, program):
            run(1.0)
        hcb.barrier_wait()
        ran.clear(), gate.clear()
        for run in (holding, *[program] * 5):
            run(1.0)
        return weakref.ref(payload)

    reference = dropped()
    gc.collect()
    gate.set()
    hcb.barrier_wait()
    assert ran == [True] * 5
    gc.collect()
    assert reference() is None, "its last values have run, and the function is still alive"


def test_a_callback_lives_as_long_as_its_executable() -> None:
    """Dropping the function while the compiled program is kept must not take the callback away."""
    record = Record()

    def compiled() -> Any:
        return jax.jit(lambda x: hcb.id_tap(record.labelled("alive"), x)).lower(1.0).compile()

    program = compiled()
    gc.collect()
    jax.clear_caches()
    gc.collect()
    helpers.finish(program(jnp.float32(1)))
    assert record.labels == ["alive"]


def test_dropping_everything_while_the_program_runs() -> None:
    record = Record()
    out = jax.pmap(lambda x: hcb.call(record.caller(), x, result_shape=x))(np.ones(8, np.float32))
    jax.clear_caches()
    gc.collect()
    helpers.finish(out)
    assert len(record.all) == 8


LEAKS = """
import resource
class Payload:
    pass
refs = []
def bad(a):
    raise ValueError("the reason")
def once(n):
    payload = Payload()
    payload.bytes = bytes(1000)
    def tap(a, t, payload=payload): pass
    def function(a, payload=payload): return a
    def failing(a, payload=payload): raise ValueError("the reason")
    x = jnp.float32(n)
    try:
        USE
    except jax.errors.JaxRuntimeError:
        pass
    refs.append(weakref.ref(payload))
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
logging.getLogger("hostcb").setLevel(logging.CRITICAL)
N = ROUNDS
for n in range(N):
    once(n)
    if n % 5 == 0:
        try:
            hcb.barrier_wait()
        except hcb.CallbackException:
            pass
    if n % 20 == 0:
        # Failed programs leave cycles of frames; when they go should not depend on what else was allocated.
        gc.collect()
    if n == N // 2:
        gc.collect()
        before = rss()
try:
    hcb.barrier_wait()
except hcb.CallbackException:
    pass
gc.collect()
print(json.dumps(dict(alive=sum(ref() is not None for ref in refs), grown=(rss() - before) / (N - N // 2))))
"""
USES = {
    "jit": ("jax.jit(lambda x: hcb.call(function, hcb.id_tap(tap, x), result_shape=x))(x)", rounds(300, 600)),
    "eager_tap": ("hcb.id_tap(tap, x)", rounds(500, 1000)),
    "eager_call": ("hcb.call(function, x, result_shape=x)", rounds(500, 1000)),
    "failing_jit_call": ("jax.jit(lambda x: hcb.call(failing, x, result_shape=x))(x)", rounds(300, 600)),
    "failing_eager_call": ("hcb.call(failing, x, result_shape=x)", rounds(500, 1000)),
}


# Hundreds of compilations. That callbacks die with their programs is tested above, once for each construct.
COMPILING = ("jit", "failing_jit_call")


@pytest.mark.parametrize(
    "use", [pytest.param(use, marks=pytest.mark.thorough if use in COMPILING else []) for use in USES]
)
def test_many_rounds_of_compile_run_and_drop(use: str) -> None:
    code, count = USES[use]
    report = run_program(LEAKS.replace("USE", code).replace("ROUNDS", str(count)), devices=1).json()
    assert report["alive"] <= 2, f"{report['alive']} of {count} callbacks are still alive"
    # JAX itself keeps some kilobytes of each dropped program.
    assert report["grown"] < 40_000, f"memory grows by {report['grown']:.0f} bytes a round"


def test_running_one_program_ten_thousand_times_does_not_grow() -> None:
    source = """
import resource
program = jax.jit(lambda x: hcb.call(lambda a: a, hcb.id_tap(lambda a, t: None, x), result_shape=x))
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
for n in range(10_000):
    program(1.0)
    if n == 3_000:
        hcb.barrier_wait(); gc.collect(); before = rss()
hcb.barrier_wait(); gc.collect()
print(json.dumps((rss() - before) / 7_000))
"""
    grown = run_program(source, devices=1).json()
    assert grown < 300, f"memory grows by {grown:.0f} bytes a run"


@pytest.mark.parametrize(
    "call",
    [
        "hcb.io_callback(function, x, x)",
        "hcb.io_callback(function, x, x, ordered=True)",
        "hcb.pure_callback(function, x, x)",
        "hcb.debug.callback(function, x)",
        "hcb.id_tap(tap, x)",
        "hcb.call(function, x, result_shape=x)",
    ],
)
def test_calls_outside_jit_leave_no_objects(call: str) -> None:
    source = """
x = np.float32(1)
function = lambda operand: operand
tap = lambda operand, transforms: None
def objects(calls):
    for _ in range(calls):
        CALL
    hcb.barrier_wait(); gc.collect(); gc.collect()
    return len(gc.get_objects())
before = objects(50)
print(json.dumps(objects(300) - before))
"""
    grown = run_program(source.replace("CALL", call), devices=1).json()
    assert grown < 100, f"{grown} objects are left by 300 calls"
