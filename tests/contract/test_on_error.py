"""H14, X4: `on_error` says what raises the failure of a callback without a result; its computation goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from support.first_lines import barrier, files_of
from support.helpers import DEADLINE, STAGES
from support.subprocesses import run_program

import hostcb as hcb
from hostcb import debug
from hostcb._errors.failures import FailureLog, failure_log

pytestmark = pytest.mark.contract("H14")

ONE = np.float32(1)


def fails(*_: Any, **__: Any) -> None:
    raise OSError("disk full")


class Full:
    def write(self, text: str) -> None:
        raise OSError("disk full")


class Unprintable:
    def __str__(self) -> str:
        raise OSError("disk full")

    __repr__ = __str__


# Each returns its operand, so that a test sees that the computation goes on.
KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "id_tap": lambda x, on_error: hcb.id_tap(fails, x, on_error=on_error),
    "id_print": lambda x, on_error: hcb.id_print(x, output_stream=Full(), on_error=on_error),
    "debug.callback": lambda x, on_error: (debug.callback(on_error=on_error)(fails, x), x)[1],
    "debug.callback, ordered": lambda x, on_error: (debug.callback(ordered=True, on_error=on_error)(fails, x), x)[1],
    "debug.print": lambda x, on_error: (debug.print(on_error=on_error)("{} {y}", x, y=Unprintable()), x)[1],
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)

other = jax.jit(lambda x: hcb.id_tap(lambda value, transforms: None, x))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    failure_log.forget()
    yield
    hcb.barrier_wait()


def run(kind: str, on_error: Any, stage: Any = jax.jit) -> None:
    """Run one callback that fails, and wait until it has."""
    assert stage(lambda x: KINDS[kind](x, on_error))(ONE) == 1
    jax.effects_barrier()


@EACH_KIND
@STAGES
def test_the_barrier_raises_it(kind: str, stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hostcb")
    run(kind, "barrier", stage)
    other(ONE)
    assert [line.endswith("disk full (the next barrier_wait raises it)") for line in caplog.messages] == [True]
    (failure,) = barrier().failures
    assert (str(failure.exception), failure.ended, str(failure.device)) == ("disk full", False, str(jax.devices()[0]))


@EACH_KIND
@STAGES
def test_nothing_raises_what_is_only_logged(kind: str, stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hostcb")
    before = hcb.stats()
    run(kind, "log", stage)
    other(ONE)
    hcb.barrier_wait()
    (message,) = caplog.messages
    line, *_, last = message.splitlines()
    assert line.startswith(kind.partition(",")[0])
    assert line.endswith("on cpu:0, raised OSError: disk full (nothing raises it)")
    # No error ever shows the traceback.
    assert f'"{__file__}"' in message and last == "OSError: disk full"
    assert (hcb.stats() - before)["cpu:0"].failures == 1


@EACH_KIND
@STAGES
def test_the_next_dispatch_raises_it_once(kind: str, stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hostcb")
    # Its second run takes JAX's fast dispatch.
    other(ONE)
    other(ONE)
    run(kind, "next_dispatch", stage)
    with pytest.raises(hcb.CallbackException) as caught:
        other(ONE)
    assert [line.endswith("(the next dispatch raises it)") for line in caplog.messages] == [True]
    assert [str(failure.exception) for failure in caught.value.failures] == ["disk full"]
    assert isinstance(caught.value.__cause__, OSError) and "This dispatch has not begun" in str(caught.value)
    assert files_of(caught.value)[0] == __file__
    assert other(ONE) == 1
    hcb.barrier_wait()


@EACH_KIND
def test_a_barrier_comes_before_the_next_dispatch(kind: str) -> None:
    run(kind, "next_dispatch")
    assert len(barrier().failures) == 1
    assert other(ONE) == 1


DISPATCHES: dict[str, Callable[[], Any]] = {
    "its first run": lambda: jax.jit(lambda x: hcb.id_tap(lambda value, transforms: None, x))(ONE),
    "compiled ahead of time": lambda: other.lower(ONE).compile()(ONE),
    "several devices": lambda: jax.pmap(lambda x: hcb.id_tap(lambda value, transforms: None, x))(np.ones(2)),
    "an io_callback": lambda: jax.jit(lambda x: hcb.io_callback(lambda value: value, x, x))(ONE),
    "a debug callback": lambda: jax.jit(lambda x: debug.callback(lambda value: None, x))(ONE),
    "outside jit": lambda: hcb.id_tap(lambda value, transforms: None, ONE),
    "a call outside jit": lambda: hcb.call(lambda value: value, ONE, result_shape=ONE),
}


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_any_dispatch_with_callbacks_raises_it(dispatch: str) -> None:
    run("id_tap", "next_dispatch")
    with pytest.raises(hcb.CallbackException) as caught:
        DISPATCHES[dispatch]()
    assert files_of(caught.value)[0] == __file__
    DISPATCHES[dispatch]()


def test_a_program_without_callbacks_does_not_raise_it() -> None:
    run("id_tap", "next_dispatch")
    assert jax.jit(lambda x: x + 1)(ONE) == 2
    assert len(barrier().failures) == 1


def test_a_program_that_a_callback_starts_does_not_raise_it() -> None:
    """Otherwise the callback would fail with what another one raised."""
    seen: list[Any] = []

    def starts_programs(value: Any, transforms: Any) -> None:
        run("id_tap", "next_dispatch")
        seen.extend([other(value), hcb.id_tap(lambda value, transforms: None, value)])

    assert other(ONE) == 1
    hcb.id_tap(starts_programs, ONE)
    jax.effects_barrier()
    assert seen == [1, 1]
    with pytest.raises(hcb.CallbackException):
        other(ONE)


def test_of_many_threads_one_raises_it() -> None:
    run("id_tap", "next_dispatch")
    count, raised = 8, list[hcb.CallbackException]()
    together = threading.Barrier(count, timeout=DEADLINE)

    def dispatch() -> None:
        together.wait()
        try:
            other(ONE)
        except hcb.CallbackException as error:
            raised.append(error)

    threads = [threading.Thread(target=dispatch) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(raised) == 1


def test_failures_of_other_policies_stay_for_the_barrier() -> None:
    run("id_tap", "barrier")
    run("id_print", "log")
    run("debug.callback", "next_dispatch")
    with pytest.raises(hcb.CallbackException) as caught:
        other(ONE)
    assert [failure.kind for failure in caught.value.failures] == ["debug.callback"]
    assert [failure.kind for failure in barrier().failures] == ["id_tap"]


def test_all_that_is_due_is_raised_together() -> None:
    program = jax.jit(lambda x: KINDS["id_tap"](KINDS["debug.callback"](x, "next_dispatch"), "next_dispatch"))
    program(ONE)
    jax.effects_barrier()
    with pytest.raises(hcb.CallbackException, match=r"\) failed 2 times, the last time as above") as caught:
        other(ONE)
    assert {failure.kind for failure in caught.value.failures} == {"id_tap", "debug.callback"}


def test_a_dispatch_does_not_take_the_report_of_a_barrier() -> None:
    """A barrier that has made its report raises it, also if a dispatch comes between these two steps."""
    log, device = FailureLog(), jax.devices()[0]
    log.record("tap", device, OSError("for the barrier"), "barrier")
    log.record("tap", device, OSError("for the dispatch"), "next_dispatch")
    report, between = log._raise, list[str]()

    def raises(last: Any) -> None:
        if last.error and not between:
            between.append("dispatch")
            log.raise_due()
        report(last)

    log._raise = raises  # type: ignore[method-assign]
    with pytest.raises(hcb.CallbackException) as caught:
        log.raise_if_any()
    assert [str(each.exception) for each in caught.value.failures] == ["for the barrier", "for the dispatch"]
    log.raise_due()
    log.raise_if_any()


def test_a_failure_that_no_dispatch_follows_is_reported_at_the_end() -> None:
    program = """
def fails(value, transforms):
    raise ValueError("the reason")
hcb.id_tap(fails, jax.numpy.ones(()), on_error="{}")
"""
    ends = {each: run_program(program.format(each), devices=1, timeout=60.0) for each in ("next_dispatch", "log")}
    assert "no barrier_wait reported it" in ends["next_dispatch"].stderr
    assert "no barrier_wait reported it" not in ends["log"].stderr
    assert "the reason (nothing raises it)" in ends["log"].stderr


def test_what_is_only_logged_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hostcb")
    program = jax.jit(lambda x: KINDS["id_tap"](x, "log"))
    for _ in range(50):
        program(ONE)
        hcb.barrier_wait()
    lines = [message.partition("\n")[0] for message in caplog.messages if message.startswith("id_tap")]
    assert lines[0].endswith("(nothing raises it)")
    assert len(lines) < 40, "a barrier, which reports nothing of it, does not begin anew"
    assert all(" times. The last: " in line for line in lines[1:])
    assert ["Traceback" in message for message in caplog.messages] == [True] + [False] * (len(lines) - 1)


@pytest.mark.contract("X4")
def test_without_a_policy_a_debug_callback_ends_its_computation() -> None:
    for policy in ({}, {"on_error": None}):
        with pytest.raises(jax.errors.JaxRuntimeError, match="disk full"):
            jax.jit(lambda x, policy=policy: debug.callback(ordered=False, **policy)(fails, x))(ONE)
        barrier()


@pytest.mark.contract("X4")
def test_beside_its_function_on_error_is_an_argument_of_it() -> None:
    seen: list[Any] = []
    jax.jit(lambda x: debug.callback(lambda value, on_error: seen.append(on_error), x, on_error="log"))(ONE)
    hcb.barrier_wait()
    assert seen == ["log"]


@pytest.mark.contract("X4")
def test_other_callbacks_of_the_program_go_on() -> None:
    seen: list[float] = []
    program = jax.vmap(
        lambda x: (debug.callback(on_error="log")(fails, x), hcb.id_tap(lambda v, t: seen.append(v), x))[1]
    )
    jax.jit(program)(np.arange(3, dtype=np.float32))
    hcb.barrier_wait()
    assert len(seen) == 1


def test_on_several_devices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hostcb")
    values = np.arange(2, dtype=np.float32)
    for kind in ("id_tap", "debug.callback"):
        np.testing.assert_array_equal(jax.pmap(lambda x, kind=kind: KINDS[kind](x, "next_dispatch"))(values), values)
        jax.effects_barrier()
        with pytest.raises(hcb.CallbackException) as caught:
            other(ONE)
        assert sorted(str(failure.device) for failure in caught.value.failures) == sorted(map(str, jax.devices()[:2]))


def test_inline_taps_keep_to_their_policy(request: pytest.FixtureRequest) -> None:
    """The flag lets exceptions pass outside jit; a policy that a tap names comes first."""
    jax.config.update("jax_host_callback_inline", True)
    request.addfinalizer(lambda: jax.config.update("jax_host_callback_inline", False))
    with pytest.raises(OSError, match="disk full"):
        hcb.id_tap(fails, ONE)
    hcb.id_tap(fails, ONE, on_error="log")
    hcb.id_tap(fails, ONE, on_error="next_dispatch")
    with pytest.raises(hcb.CallbackException):
        other(ONE)


@pytest.mark.parametrize("on_error", ["raise", "", None, 3, ["log"], np.zeros(2)], ids=repr)
@pytest.mark.parametrize("kind", ["id_tap", "id_print"])
def test_what_is_no_policy_is_refused_at_the_call(kind: str, on_error: Any) -> None:
    with pytest.raises(ValueError, match=f"{kind}: .*on_error must be one of 'barrier', 'next_dispatch', 'log', got "):
        jax.jit(lambda x: KINDS[kind](x, on_error))(ONE)


@pytest.mark.contract("X4")
@pytest.mark.parametrize("kind", ["debug.callback", "debug.print"])
def test_what_is_no_policy_of_a_debug_callback_is_refused_at_the_call(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind}: .*on_error must be one of 'barrier', 'next_dispatch', 'log', got"):
        jax.jit(lambda x: KINDS[kind](x, "raise"))(ONE)


@pytest.mark.contract("H18")
def test_equal_policies_make_equal_programs() -> None:
    def program(on_error: Any) -> str:
        return str(jax.make_jaxpr(lambda x: KINDS["id_tap"](x, on_error))(ONE).eqns[0].params["callback"].__hash__())

    assert program("log") == program("log")
    assert len({program(each) for each in ("barrier", "next_dispatch", "log")}) == 3
