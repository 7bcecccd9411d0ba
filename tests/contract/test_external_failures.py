"""H15, X2, X3, X4, B1, D1: a callback that fails ends its own computation, the same way each time, and nothing else."""

from __future__ import annotations

import functools
import gc
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support import helpers
from support.helpers import DEADLINE, Record, like
from support.pairwise import in_turns
from support.switch_intervals import switch_interval_of

import hostcb as hcb

X = np.arange(8, dtype=np.float32)
TIMES = 6
EXCEPTIONS = (KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit, MemoryError, FloatingPointError)


def debugging(ordered: bool) -> Any:
    return lambda f, x: (hcb.debug.callback(f, x, ordered=ordered), x + 1)[1]


def filling(has_side_effect: bool) -> Any:
    def bind(f: Any, x: Any) -> Any:
        fill = lambda ctx, out, x: np.copyto(np.asarray(out), f(np.asarray(x)))
        return hcb.buffer_callback(fill, like(x), has_side_effect=has_side_effect)(x)

    return bind


def dlpack(f: Any, x: Any) -> Any:
    return hcb.dlpack_callback(lambda x: f(np.asarray(x)), like(x))(x)


# Each calls `function(x)`, a function that adds one, and returns x + 1.
KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda f, x: hcb.call(f, x, result_shape=like(x)),
    "pure": lambda f, x: hcb.pure_callback(f, like(x), x),
    "io": lambda f, x: hcb.io_callback(f, like(x), x),
    "ordered_io": lambda f, x: hcb.io_callback(f, like(x), x, ordered=True),
    "debug": debugging(False),
    "ordered_debug": debugging(True),
    "buffer": filling(False),
    "buffer_with_effect": filling(True),
    "dlpack": dlpack,
}
KIND = pytest.mark.parametrize("kind", KINDS)


class Host:
    """Adds one, unless it must fail."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.at = 0.0
        self.raised: list[BaseException] = []

    def __call__(self, x: Any) -> Any:
        if self.error is not None and float(x.ravel()[0]) >= self.at:
            self.raised.append(self.error)
            raise self.error
        return x + 1


def scan(f: Any, x: Any) -> Any:
    return lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0] - 2


def large(f: Any, x: Any) -> Any:
    """More operations than JAX's fast dispatch is trusted with, before the callback and after it."""
    y = functools.reduce(lambda y, _: jnp.cumsum(jnp.flip(y)) * 0 + y, range(6), x)
    return functools.reduce(lambda y, _: jnp.sort(y), range(3), f(y))


plain = lambda f, x: f(x)
PROGRAMS: dict[str, tuple[helpers.Layout, Any]] = {
    "eager": (helpers.EAGER, plain),
    "jit": (helpers.JIT, plain),
    "jit_device_5": (helpers.JIT_DEVICE_5, plain),
    "inner_jit": (helpers.JIT, lambda f, x: jax.jit(lambda y: jax.jit(f)(y))(x)),
    "large": (helpers.JIT, large),
    "scan": (helpers.JIT, scan),
    "while": (
        helpers.JIT,
        lambda f, x: lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, x))[1] - 1,
    ),
    # With zeros in place of a failed result it would run for ever.
    "while_condition": (helpers.JIT, lambda f, x: lax.while_loop(lambda s: f(s)[1] < 10, lambda s: s + 1, x) - 7),
    "cond": (helpers.JIT, lambda f, x: lax.cond(x[1] > -5, f, lambda y: y, x)),
    "pmap": (helpers.PMAP, plain),
    "pmap_scan": (helpers.PMAP, scan),
    "shard_map": (helpers.SHARD_MAP, plain),
    "mesh": (helpers.MESH, plain),
    "mesh_scan": (helpers.MESH, scan),
}


def raised_by(run: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        jax.block_until_ready(run())
    return caught.value


def reported() -> tuple[Any, ...]:
    """What the next barrier reports."""
    try:
        hcb.barrier_wait()
    except hcb.CallbackException as exception:
        return exception.failures
    return ()


@pytest.mark.contract("H15", "X2", "X3", "X4")
@in_turns(("program", "kind"), PROGRAMS, KINDS, times=3)
def test_fails_the_same_way_each_time_and_poisons_nothing(program: str, kind: str) -> None:
    """Guards against #34083 (ValueError from the second call on) and #37587 (later calls raise the old error)."""
    layout, construct = PROGRAMS[program]
    if kind == "buffer_with_effect" and layout is helpers.MESH:
        pytest.skip("refused while lowering; see test_buffer_callback.py")
    host, other = Host(), Host()
    compiled = layout.compile(lambda x: construct(lambda y: KINDS[kind](host, y), x))
    unrelated = layout.compile(lambda x: KINDS[kind](other, x))
    values = layout.same(X)
    alone = len(layout.callers) == 1 and layout is not helpers.MESH

    def check_right(when: str) -> None:
        host.error = None
        for out in layout.split(jax.block_until_ready(compiled(values))):
            helpers.equal(out, X + 1, f"{kind} in {program} {when}")
        layout.split(jax.block_until_ready(unrelated(values)))

    # Every second program succeeds first.
    if ([*PROGRAMS].index(program) + [*KINDS].index(kind)) % 2:
        check_right("before any failure")
    for n in range(TIMES):
        host.error = ValueError(f"the reason {n}")
        error = raised_by(lambda: compiled(values))
        assert type(error) is jax.errors.JaxRuntimeError, f"call {n} raised {type(error)}: {error}"
        # Beside a cause, which Python shows, the text has no traceback.
        for part in ("in __call__", "raise self.error", 'test_external_failures.py", line'):
            assert (part in str(error)) is (error.__cause__ is None), f"{part!r} in the text of call {n}: {error}"
        assert "the reason" in str(error)
        if alone:
            assert error.__cause__ is host.error, f"the cause of call {n} is {error.__cause__!r}"
            frames = [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)]
            assert "__call__" in frames, f"the cause should have the user's traceback, has {frames}"
        jax.effects_barrier()
        if n in (0, 1, 5):
            check_right(f"after failure {n}")
    failures = reported()
    assert len(failures) == len(host.raised), f"{len(failures)} failures reported of {len(host.raised)}"
    check_right("after the barrier")
    assert reported() == (), "what was reported should be forgotten"


@pytest.mark.contract("H14", "H15", "X2", "X3", "X4")
@in_turns(("kind", "exception"), KINDS, EXCEPTIONS, times=2)
def test_every_exception_becomes_the_same_one(kind: str, exception: Any) -> None:
    host = Host()
    compiled = jax.jit(lambda x: KINDS[kind](host, x))
    for n in range(3):
        host.error = exception("the reason")
        error = raised_by(lambda: compiled(X))
        assert type(error) is jax.errors.JaxRuntimeError, f"call {n} raised {type(error)}: {error}"
        assert error.__cause__ is host.error and exception.__name__ in str(error), f"{error}"
        # A debug callback has no result to expect.
        assert "debug" in kind or "float32[8]" in str(error), f"the expected result is missing in {error}"
    failures = reported()
    assert [failure.exception for failure in failures] == host.raised
    assert {failure.device for failure in failures} == {jax.devices()[0]}
    host.error = None
    helpers.equal(compiled(X), X + 1, "afterwards")


@pytest.mark.contract("X2", "X3", "X4")
@KIND
@pytest.mark.parametrize("layout", [helpers.PMAP, helpers.SHARD_MAP], ids=helpers.named)
def test_failing_on_one_device_alone(kind: str, layout: helpers.Layout) -> None:
    host = Host()
    host.at = 30.0
    compiled = layout.compile(lambda x: KINDS[kind](host, x) * 2)
    values = [X + 10 * n for n in (0, 3, 0, 0, 1, 2, 0, 0)]
    for _ in range(2):
        host.error = ValueError("the reason")
        error = raised_by(lambda: layout.split(jax.block_until_ready(compiled(values))))
        assert type(error) is jax.errors.JaxRuntimeError and "the reason" in str(error), f"{type(error)} {error}"
        host.error = None
        jax.effects_barrier()
        for value, out in zip(values, layout.split(jax.block_until_ready(compiled(values))), strict=True):
            helpers.equal(out, (value + 1) * 2, "the next call")
    assert {failure.device for failure in reported()} == {jax.devices()[1]}, "the device that failed"


# Beside other things ---------------------------------------------------------------------------------------------


@pytest.mark.contract("X2")
@pytest.mark.parametrize("kind", ["pure", "dlpack", "io"])
@pytest.mark.parametrize("option", ["jax_debug_nans", "jax_debug_infs"])
def test_debugging_options_of_jax_are_not_disturbed(kind: str, option: str) -> None:
    host = Host()
    compiled = jax.jit(lambda x: KINDS[kind](host, x))
    bad = jax.jit(lambda x: jnp.log(x) if option == "jax_debug_nans" else jnp.exp(x))
    value = jnp.float32(-1 if option == "jax_debug_nans" else 1000)
    for _ in range(2):
        with getattr(jax, option.removeprefix("jax_"))(True):
            helpers.equal(compiled(X), X + 1, "before")
            for _ in range(3):
                host.error = ValueError("the reason")
                error = raised_by(lambda: compiled(X))
                assert type(error) is jax.errors.JaxRuntimeError, f"{type(error)}: {error}"
                host.error = None
                helpers.equal(compiled(X), X + 1, "after a failure")
                for _ in range(2):
                    assert type(raised_by(lambda: bad(value))) is FloatingPointError, "the option should still work"
        assert not getattr(jax.config, option), "and be off again"
        assert not np.isfinite(bad(value)), "without the option nothing is raised"
        host.error = ValueError("the reason")
        assert type(raised_by(lambda: compiled(X))) is jax.errors.JaxRuntimeError
        host.error = None
    assert len(reported()) == 8


@pytest.mark.contract("X2")
@in_turns(("kind", "outer"), KINDS, ["pure", "io", "ordered_io", "debug", "dlpack"], times=2)
def test_an_inner_jit_that_fails_in_a_callback(kind: str, outer: str) -> None:
    """Caught inside, all is right; otherwise the outer one fails too, with the inner error as its cause."""
    host, catching = Host(), [True]
    inner = jax.jit(lambda x: KINDS[kind](host, x))

    def function(x: Any) -> Any:
        try:
            return np.asarray(inner(x))
        except jax.errors.JaxRuntimeError:
            if not catching[0]:
                raise
            return x + 1

    compiled = jax.jit(lambda x: KINDS[outer](function, x))
    for n in range(3):
        host.error, catching[0] = ValueError(f"the reason {n}"), True
        helpers.equal(compiled(X), X + 1, f"caught {n}")
        catching[0] = False
        error = raised_by(lambda: compiled(X))
        assert type(error) is jax.errors.JaxRuntimeError, f"{type(error)}: {error}"
        assert isinstance(error.__cause__, jax.errors.JaxRuntimeError), f"cause {error.__cause__!r}"
        assert error.__cause__.__cause__ is host.error, f"its cause {error.__cause__.__cause__!r}"
        host.error = None
        helpers.equal(compiled(X), X + 1, f"not failing {n}")
    assert len(reported()) == 9, "inner twice, outer once, three times"


@pytest.mark.contract("X2")
@pytest.mark.parametrize("kind", ["pure", "io", "ordered_io", "debug", "buffer", "dlpack"])
def test_no_other_thread_ever_receives_the_error(kind: str) -> None:
    """Threads that dispatch failing callbacks, right ones and programs without any, all at once."""
    barrier, problems = threading.Barrier(4), Record()

    def fails(number: int) -> None:
        host = Host()
        compiled = jax.jit(lambda x: KINDS[kind](host, x) + number)
        for n in range(60):
            host.error = ValueError(f"thread {number} call {n} ") if n % 3 else None
            if host.error is None:
                if not np.array_equal(compiled(X), X + 1 + number):
                    problems.add(f"wrong result in {number} {n}")
                continue
            error = raised_by(lambda: compiled(X))
            if type(error) is not jax.errors.JaxRuntimeError or error.__cause__ is not host.error:
                problems.add(f"{number} {n}: {error!r} with cause {error.__cause__!r}")

    def plain(number: int) -> None:
        unrelated = jax.jit(lambda x: x * 2 + number)
        for n in range(600):
            if not np.array_equal(unrelated(X), X * 2 + number):
                problems.add(f"wrong result in {number} {n}")

    def guarded(work: Any, number: int) -> None:
        barrier.wait(DEADLINE)
        try:
            work(number)
        except BaseException as error:
            problems.add(f"thread {number} received {error!r}")

    threads = [threading.Thread(target=guarded, args=(work, n)) for n, work in enumerate((fails, fails, plain, plain))]
    with switch_interval_of(1e-5):
        [thread.start() for thread in threads]
        [thread.join(DEADLINE) for thread in threads]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert problems.args == [], f"{len(problems.all)} problems, the first: {problems.args[0]}"
    assert len(reported()) == 80


@pytest.mark.contract("H18")
@pytest.mark.parametrize("how", ["eager", "jit", "jit_again", "failed", "pmap", "mesh", "scan"])
def test_functions_go_with_their_executables(how: str) -> None:
    """Guards against eager_retention: JAX's own eager callbacks stay alive until `jax.clear_caches()`.

    All kinds at once, since looking through all objects takes longer than what is tried.
    """
    layout = {"eager": helpers.EAGER, "pmap": helpers.PMAP, "mesh": helpers.MESH}.get(how, helpers.JIT)

    def use(kind: str) -> weakref.ref[Any]:
        host = Host()
        f = lambda y: KINDS[kind](host, y)
        compiled = layout.compile(lambda x: scan(f, x) if how == "scan" else f(x))
        for _ in range(3 if how == "jit_again" else 1):
            jax.block_until_ready(compiled(layout.same(X)))
        if how == "failed":
            host.error = ValueError("the reason")
            raised_by(lambda: compiled(layout.same(X)))
            host.raised.clear()
            host.error = None
        return weakref.ref(host)

    kinds = KINDS if how in ("eager", "jit") else ("pure", "ordered_io", "debug", "buffer")
    # Outside jit the kinds that work in place are compiled too, and the last few programs are kept.
    in_place = ("buffer", "buffer_with_effect", "dlpack") if how == "eager" else ()
    alive = {kind: [use(kind) for _ in range(22 if kind in in_place else 2)] for kind in kinds}
    reported()
    if how == "pmap":
        # JAX keeps the programs of dropped functions, those without any callback too.
        jax.clear_caches()
    gc.collect()
    for kind, references in alive.items():
        left = sum(reference() is not None for reference in references)
        most = 20 if kind in in_place else 1
        assert left <= most, f"{left} of {len(references)} functions of {kind} are still alive"


@pytest.mark.contract("H18")
@KIND
def test_an_equal_callback_traces_and_compiles_nothing(kind: str) -> None:
    compiled, traced = [], []
    listener = lambda event, duration, **_: compiled.append(event) if "backend_compile" in event else None

    @jax.jit
    def program(x):
        traced.append(0)
        return KINDS[kind](np.positive if "debug" in kind else ADD_ONE, x)

    jax.block_until_ready(program(X))
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for n in range(5):
            jax.block_until_ready(program(X + n))
        assert (len(traced), compiled) == (1, []), f"{len(traced)} traces, {len(compiled)} compilations"
        if kind not in ("buffer", "buffer_with_effect", "dlpack"):
            # These make a new function for each use here; `test_buffer_callback.py` has them with the same one.
            KINDS[kind](ADD_ONE, jnp.asarray(X))
            compiled.clear()
            KINDS[kind](ADD_ONE, jnp.asarray(X))
            assert compiled == [], f"{len(compiled)} compilations outside jit"
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


ADD_ONE = Host()
