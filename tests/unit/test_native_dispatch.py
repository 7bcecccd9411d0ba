"""X2: errors of pure callbacks where JAX's fast dispatch runs the program, and what keeps zeros from being seen."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import DEADLINE

import hostcb as hcb
from hostcb._lowering import views
from hostcb._runtime.dispatch import postponed

SCALAR = jax.ShapeDtypeStruct((), np.float32)


class Faulty:
    """The identity, or once armed a function that raises an exception of its own each time."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, x: Any) -> Any:
        if self.armed:
            raise ValueError(f"failed on {float(np.ravel(x)[0])}")
        return x


def failed(run: Callable[[], Any]) -> BaseException:
    """The cause of the error with which `run` ends; the barrier knows it too."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="failed on") as caught:
        jax.block_until_ready(run())
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError), f"the cause is {cause!r}"
    return cause


def in_four_threads(run: Callable[[int], None]) -> None:
    """Run it four times at once, with a number each."""
    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


@pytest.mark.contract("X2")
def test_no_callback_sees_what_a_failed_one_left() -> None:
    first, seen = Faulty(), []

    def second(y: Any) -> Any:
        seen.append(float(y))
        return y

    chained = jax.jit(lambda x: hcb.pure_callback(second, SCALAR, hcb.pure_callback(first, SCALAR, x)))
    for _ in range(2):
        assert float(chained(2.0)) == 2.0
    seen.clear()
    first.armed = True
    for _ in range(3):
        failed(lambda: chained(3.0))
    assert seen == [], f"a callback was called with {seen}, which no program computed"


@pytest.mark.contract("X2")
def test_a_callback_beside_the_failed_one_may_dispatch_by_itself() -> None:
    first, inner = Faulty(), jax.jit(lambda x: x + 1)
    both = jax.jit(
        lambda x: (
            hcb.pure_callback(first, SCALAR, x),
            hcb.pure_callback(lambda x: np.asarray(inner(x)), SCALAR, x),
        )
    )
    for _ in range(2):
        assert [float(out) for out in both(4.0)] == [4.0, 5.0]
    first.armed = True
    for _ in range(3):
        failed(lambda: both(4.0))
    first.armed = False
    assert [float(out) for out in both(4.0)] == [4.0, 5.0]


@pytest.mark.contract("X2")
def test_an_error_has_one_type_after_an_operation_that_many_threads_share() -> None:
    faulty, x = Faulty(), jnp.ones(1_000_000)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    program = jax.jit(lambda x: hcb.pure_callback(faulty, shape, jnp.sin(x)))
    for _ in range(2):
        jax.block_until_ready(program(x))
    faulty.armed = True
    for _ in range(20):
        failed(lambda: program(x))


@pytest.mark.contract("H15")
@pytest.mark.parametrize("kind", ["pure", "io", "ordered", "call"])
def test_each_thread_gets_the_cause_of_its_own_failure(kind: str) -> None:
    faulty = Faulty()
    program = jax.jit(
        {
            "pure": lambda x: hcb.pure_callback(faulty, SCALAR, x),
            "io": lambda x: hcb.io_callback(faulty, SCALAR, x),
            "ordered": lambda x: hcb.io_callback(faulty, SCALAR, x, ordered=True),
            "call": lambda x: hcb.call(faulty, x, result_shape=SCALAR),
        }[kind]
    )
    program(0.0)
    faulty.armed = True
    wrong: list[str] = []
    start = threading.Barrier(4)

    def run(number: int) -> None:
        start.wait(DEADLINE)
        for step in range(25):
            value = float(1000 * number + step)
            try:
                program(value)
            except jax.errors.JaxRuntimeError as error:
                if str(error.__cause__) != f"failed on {value}":
                    wrong.append(f"{value} got {error.__cause__!r}")
            else:
                wrong.append(f"{value} got a result")

    in_four_threads(run)
    assert wrong == [], f"{len(wrong)} of 100, such as {wrong[:3]}"
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    assert len(caught.value.failures) == 100


@pytest.mark.contract("X2")
def test_a_signal_whose_handler_dispatches_gets_no_foreign_error() -> None:
    faulty, inner = Faulty(), jax.jit(lambda x: x + 1)
    program = jax.jit(lambda x: hcb.pure_callback(faulty, SCALAR, x))
    program(1.0), program(1.0), inner(1.0), inner(1.0)
    faulty.armed = True
    outcomes: list[Any] = []

    def on_signal(*_: Any) -> None:
        outcomes.append(float(inner(1.0)))

    # One signal a dispatch, at another moment each time. Signals that come faster than they are handled nest without
    # end, and that XLA does not survive.
    before = signal.signal(signal.SIGALRM, on_signal)
    try:
        for step in range(300):
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + 2e-6 * step)
            try:
                program(2.0)
            except jax.errors.JaxRuntimeError as error:
                outcomes.append(str(error.__cause__))
            else:
                outcomes.append("a result")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert outcomes.count("failed on 2.0") == 300, f"{set(outcomes)}"
    assert set(outcomes) <= {"failed on 2.0", 2.0}, f"{set(outcomes)}"
    assert 2.0 in outcomes, "no signal came in between"
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    assert float(inner(1.0)) == 2.0


def looped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.jit(
        lambda x: jax.lax.fori_loop(0, 50, lambda _, carry: hcb.pure_callback(function, SCALAR, carry) + 1, x)
    )


@pytest.mark.contract("X2")
def test_a_failure_in_a_loop_has_one_type_and_ends_it() -> None:
    calls: list[float] = []

    def fails_at_seven(x: Any) -> Any:
        calls.append(float(x))
        if x == 7:
            raise ValueError("failed on 7")
        return x

    program = looped(fails_at_seven)
    for _ in range(2):
        assert float(program(100.0)) == 150.0
    for _ in range(3):
        calls.clear()
        failed(lambda: program(0.0))
        assert calls == [float(n) for n in range(8)], f"called with {calls}"
    assert float(program(100.0)) == 150.0


@pytest.mark.contract("X2")
@pytest.mark.parametrize("kind", ["pure", "buffer", "dlpack"])
def test_a_failure_in_loops_of_loops(kind: str) -> None:
    faulty = Faulty()
    step = {
        "pure": lambda x: hcb.pure_callback(faulty, SCALAR, x),
        "buffer": lambda x: hcb.buffer_callback(lambda c, out, v: copied(out, faulty(np.asarray(v))), SCALAR)(x),
        "dlpack": lambda x: hcb.dlpack_callback(lambda v: faulty(np.asarray(v)), SCALAR)(x),
    }[kind]
    program = jax.jit(
        lambda x: jax.lax.fori_loop(
            0, 3, lambda _, outer: jax.lax.fori_loop(0, 4, lambda _, inner: step(inner) * 2, outer), x
        )
    )
    for _ in range(3):
        assert float(program(1.0)) == 4096.0
    faulty.armed = True
    for _ in range(3):
        failed(lambda: program(1.0))
    faulty.armed = False
    assert float(program(1.0)) == 4096.0


def copied(out: Any, value: Any) -> None:
    np.asarray(out)[...] = value


@pytest.mark.contract("X2")
def test_each_thread_gets_the_failure_of_its_own_loop() -> None:
    program, wrong = looped(at_fifty), []
    assert float(program(100.0)) == 150.0
    start = threading.Barrier(4)

    def run(number: int) -> None:
        start.wait(DEADLINE)
        for step in range(20):
            try:
                result = float(program(30.0 if step % 2 else 100.0 + number))
            except jax.errors.JaxRuntimeError as error:
                if not step % 2 or str(error.__cause__) != "failed on 50":
                    wrong.append(f"step {step} of {number} failed with {error.__cause__!r}")
            else:
                if step % 2 or result != 150.0 + number:
                    wrong.append(f"step {step} of {number} returned {result}")

    in_four_threads(run)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()
    assert wrong == []


def at_fifty(x: Any) -> Any:
    if x == 50:
        raise ValueError("failed on 50")
    return x


@pytest.mark.contract("H15")
def test_an_interrupt_while_a_failed_loop_goes_on_is_not_the_next_ones_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = looped(at_fifty)
    for _ in range(2):
        assert float(program(100.0)) == 150.0
    plain, cleared = postponed.clear, []

    def interrupted(buffers: Any) -> None:
        cleared.append(len(buffers))
        if len(cleared) == 2:
            raise KeyboardInterrupt
        plain(buffers)

    for module in (postponed, views):
        monkeypatch.setattr(module, "clear", interrupted)
    # The same place in the same frame, which is all that distinguishes one dispatch from the next.
    ends: list[Any] = []
    for value in (30.0, 100.0, 101.0):
        try:
            ends.append(float(program(value)))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            ends.append(type(error))
    assert ends[0] in (ValueError, jax.errors.JaxRuntimeError) and ends[1:] == [150.0, 151.0], f"{ends}"
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("H14", "H15")
@pytest.mark.parametrize("kind", ["id_tap", "call", "io_callback"])
def test_failures_that_are_kept_do_not_end_a_users_generator(kind: str) -> None:
    def catching() -> Any:
        caught = None
        while True:
            try:
                yield caught
            except ValueError as error:
                caught = error

    generator = catching()
    next(generator)

    def raises(*_: Any) -> Any:
        raise generator.throw(ValueError("failed on purpose"))

    ways = {
        "id_tap": lambda x: hcb.id_tap(raises, x),
        "call": lambda x: hcb.call(raises, x, result_shape=SCALAR),
        "io_callback": lambda x: hcb.io_callback(raises, SCALAR, x),
    }
    program = jax.jit(ways[kind])
    for _ in range(12):
        # The program of a tap goes on.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            program(1.0)
    assert isinstance(generator.throw(ValueError("still alive")), ValueError)
    with pytest.raises(hcb.CallbackException):
        hcb.barrier_wait()


@pytest.mark.contract("X4")
def test_a_stream_that_prints_is_not_locked_out() -> None:
    written: list[str] = []

    class Stream:
        def write(self, text: str) -> None:
            written.append(text)
            if len(written) == 1:
                hcb.id_print(jnp.float32(2), output_stream=self)

    hcb.id_print(jnp.float32(1), output_stream=Stream())
    hcb.barrier_wait()
    assert written == ["1.\n", "2.\n"]


@pytest.mark.contract("X2")
@pytest.mark.parametrize("combinator", ["reduce", "reduce_window"])
def test_the_function_of_a_reduction_cannot_call_back(combinator: str) -> None:
    def add(a: Any, b: Any) -> Any:
        return hcb.pure_callback(np.add, SCALAR, a, b)

    programs = {
        "reduce": lambda x: jax.lax.reduce(x, np.float32(0), add, (0,)),
        "reduce_window": lambda x: jax.lax.reduce_window(x, np.float32(0), add, (2,), (1,), "VALID"),
    }
    with pytest.raises(NotImplementedError, match=rf"function of a {combinator}.*associative_scan"):
        jax.jit(programs[combinator])(np.ones(8, np.float32))


@pytest.mark.contract("X3")
@pytest.mark.parametrize("size", [8, 32])
def test_vmap_over_an_axis_that_an_explicit_mesh_splits(size: int) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    count: list[float] = []
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(float(size)), jax.sharding.PartitionSpec("x"))
        jax.jit(jax.vmap(lambda x: hcb.debug.callback(lambda x: count.append(float(x)), x)))(x)
        out = jax.jit(jax.vmap(lambda x: hcb.io_callback(lambda x: x, SCALAR, x)))(x)
    hcb.barrier_wait()
    assert sorted(count) == list(range(size))
    np.testing.assert_array_equal(out, np.arange(size))
