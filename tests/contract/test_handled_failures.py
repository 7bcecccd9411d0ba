"""H13: with `raise_again=False` a barrier leaves out what hostcb has raised to the program, and nothing else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from support.helpers import DEADLINE, STAGES
from support.subprocesses import run_program

import hostcb as hcb
from hostcb import debug
from hostcb._errors import failures
from hostcb._errors.failures import FailureLog

pytestmark = pytest.mark.contract("H13", "H15")

F32 = jax.ShapeDtypeStruct((), np.float32)
ONE = np.float32(1)


def fails(*_: Any, **__: Any) -> Any:
    raise OSError("disk full")


def returns_a_text(*_: Any, **__: Any) -> Any:
    return "no number"


CALLS: dict[str, Callable[[Any], Any]] = {
    "call": lambda x: hcb.call(fails, x, result_shape=F32),
    "pure_callback": lambda x: hcb.pure_callback(fails, F32, x),
    "io_callback": lambda x: hcb.io_callback(fails, F32, x),
    "io_callback, ordered": lambda x: hcb.io_callback(fails, None, x, ordered=True),
    "debug.callback": lambda x: debug.callback(fails, x),
    "buffer_callback": lambda x: hcb.buffer_callback(fails, F32)(x),
    "dlpack_callback": lambda x: hcb.dlpack_callback(fails, F32)(x),
    "a result that does not match": lambda x: hcb.call(returns_a_text, x, result_shape=F32),
}


def left(**options: Any) -> list[str]:
    """The exceptions that a barrier raises."""
    try:
        hcb.barrier_wait(**options)
    except hcb.CallbackException as error:
        return [str(failure.exception) for failure in error.failures]
    return []


def caught(program: Callable[..., Any], *operands: Any) -> str:
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.block_until_ready(program(*operands))
        jax.effects_barrier()
    return str(error.value)


@STAGES
@pytest.mark.parametrize("kind", CALLS)
def test_what_a_dispatch_has_raised_is_forgotten(kind: str, stage: Any) -> None:
    # A function of its own: JAX finds what it has traced by the function. The second run takes the fast dispatch.
    program = stage(lambda x: CALLS[kind](x))
    for _ in range(3):
        caught(program, ONE)
    assert (left(raise_again=False), left()) == ([], [])


@STAGES
def test_by_default_it_is_raised_again(stage: Any) -> None:
    caught(stage(lambda x: CALLS["call"](x)), ONE)
    assert (left(), left()) == (["disk full"], [])


@STAGES
def test_the_failure_of_a_tap_is_raised_beside_handled_ones(stage: Any) -> None:
    caught(stage(lambda x: CALLS["call"](x)), ONE)
    stage(lambda x: hcb.id_tap(lambda value, transforms: 1 / 0, x))(ONE)
    caught(stage(lambda x: CALLS["io_callback"](x)), ONE)
    assert left(raise_again=False) == ["division by zero"]
    assert left() == [], "handled ones are forgotten with it"


def test_an_error_that_comes_with_a_result_is_raised_again() -> None:
    """The runtime makes that error of a text, which does not say whose failure it is."""
    count = len(jax.devices())
    assert count > 1
    assert "disk full" in caught(jax.pmap(lambda x: hcb.io_callback(fails, x, x)), np.ones(count, np.float32))
    assert {*left(raise_again=False)} == {"disk full"}


@pytest.mark.parametrize("reads", [False, True])
def test_a_barrier_says_that_the_program_has_got_the_error_only_if_it_has(reads: bool) -> None:
    """On several devices it comes with a result."""
    mesh = jax.make_mesh((len(jax.devices()),), ("d",))
    x = jax.device_put(np.ones(mesh.size, np.float32), jax.NamedSharding(mesh, jax.P("d")))
    y = jax.jit(lambda x: hcb.io_callback(fails, F32, x))(x)
    if reads:
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(y)
    with pytest.raises(hcb.CallbackException) as reported:
        hcb.barrier_wait()
    assert ("already, and raised it" in str(reported.value)) is reads
    assert ("Reading a result of it raises the failure, too" in str(reported.value)) is not reads


def test_of_two_threads_one_does_not_handle_the_failure_of_the_other() -> None:
    """Both run one program, and only the first asks for its error."""
    both, devices = threading.Barrier(2, timeout=DEADLINE), jax.devices()[:2]
    ended: list[str] = []

    def fails_in_its_thread(value: Any) -> Any:
        both.wait()
        raise OSError(f"on {float(value)}")

    program = jax.jit(lambda x: hcb.io_callback(fails_in_its_thread, F32, x))

    def run(number: int) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.block_until_ready(program(jax.device_put(np.float32(number), devices[number])))
        ended.append(f"on {float(number)}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(ended) == ["on 0.0", "on 1.0"]
    assert left(raise_again=False) == []


def test_an_error_that_another_exception_replaced_is_raised() -> None:
    """The program has got the interrupt, and not the error of the computation."""
    log, failure, error = FailureLog(), OSError("disk full"), jax.errors.JaxRuntimeError("the computation failed")
    log.record("call", jax.devices()[0], failure, on_error=None)
    error.__cause__ = failure
    log.raised(failure, KeyboardInterrupt())
    with pytest.raises(hcb.CallbackException, match="disk full"):
        log.raise_if_any(raise_again=False)


def test_an_error_that_does_not_show_the_failure_is_no_report_of_it() -> None:
    """Two callbacks of one dispatch fail: the runtime's text is of the first, and hostcb found the second."""
    log, failure = FailureLog(), OSError("disk full")
    log.record("call", jax.devices()[0], failure, on_error=None)
    log.raised(failure, jax.errors.JaxRuntimeError("another callback failed"))
    with pytest.raises(hcb.CallbackException, match="disk full"):
        log.raise_if_any(raise_again=False)


def test_one_error_is_the_report_of_one_failure() -> None:
    """A function that raises one exception object again and again has failed as often as it was called."""
    log, failure, error = FailureLog(), OSError("disk full"), jax.errors.JaxRuntimeError("the computation failed")
    error.__cause__ = failure
    for _ in range(2):
        log.record("call", jax.devices()[0], failure, on_error=None)
    with pytest.raises(jax.errors.JaxRuntimeError):
        log.raise_error(error, failure)
    with pytest.raises(hcb.CallbackException) as reported:
        log.raise_if_any(raise_again=False)
    assert len(reported.value.failures) == 1


def test_failures_that_were_dropped_are_not_taken_for_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "KEPT_FAILURES", 4)
    log = FailureLog()
    for number in range(6):
        failure, error = OSError(f"number {number}"), jax.errors.JaxRuntimeError("the computation failed")
        error.__cause__ = failure
        log.record("call", jax.devices()[0], failure, on_error=None)
        with pytest.raises(jax.errors.JaxRuntimeError):
            log.raise_error(error, failure)
    with pytest.raises(hcb.CallbackException, match="call failed 6 times"):
        log.raise_if_any(raise_again=False)


def test_an_interrupt_on_the_way_of_an_error_loses_no_failure() -> None:
    found = run_program("interrupted_reports.py", devices=None, timeout=200).json()
    assert {name: places.pop("undisturbed") for name, places in found.items()} == dict.fromkeys(found, "the program")
    assert {name for name, places in found.items() if len(places) > 10} == {"pure", "ordered", "first", "eager"}
    nobody = [place for places in found.values() for place, who in places.items() if who == "nobody"]
    assert nobody == []
