"""X2, H15: what signals, finalizers and tracers do between a failure and the end of its fast dispatch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hostcb as hcb
from hostcb import _compat
from hostcb._threads.running import running

SCALAR = jax.ShapeDtypeStruct((), np.float32)
BAD = 13.0
# Where Python may run something else after a failure: its handler goes on for some instructions, and the hook begins.
MOMENTS = [("return", "postpone"), ("return", "in_any_order"), ("call", "hook"), ("return", "_at_the_end")]
moments = pytest.mark.parametrize("moment", MOMENTS, ids="_of_".join)


def checked(x: Any) -> Any:
    if float(x) == BAD:
        raise ValueError(f"failed on {float(x)}")
    return x


@pytest.fixture
def program() -> Any:
    """One callback, which JAX's fast dispatch runs."""
    program = jax.jit(lambda x: hcb.pure_callback(checked, SCALAR, x))
    for value in (1.0, 2.0):
        assert float(program(value)) == value
    return program


@pytest.fixture
def interrupt() -> Iterator[Callable[[tuple[str, str], Callable[[], None]], None]]:
    """Runs an action once, at the first such moment, as Python runs a signal's handler."""

    def interrupt(moment: tuple[str, str], action: Callable[[], None]) -> None:
        def profile(frame: FrameType, event: str, _: Any) -> None:
            if (event, frame.f_code.co_name) == moment and "hostcb" in frame.f_code.co_filename:
                sys.setprofile(None)
                action()

        sys.setprofile(profile)

    yield interrupt
    sys.setprofile(None)


def end(run: Callable[[float], Any], value: float) -> Any:
    try:
        return float(run(value))
    except (jax.errors.JaxRuntimeError, ValueError, KeyboardInterrupt) as error:
        return str(error.__cause__) if isinstance(error, jax.errors.JaxRuntimeError) else type(error)


def reported() -> int:
    with pytest.raises(hcb.CallbackException) as caught:
        hcb.barrier_wait()
    return len(caught.value.failures)


@pytest.mark.contract("X2")
@moments
def test_a_signals_handler_gets_its_own_results(program: Any, interrupt: Any, moment: tuple[str, str]) -> None:
    plain, seen = jax.jit(lambda x: x + 1), []
    first = jax.jit(lambda x: hcb.pure_callback(checked, SCALAR, x) * 2)
    plain(1.0), plain(1.0)

    def action() -> None:
        seen.extend(end(run, value) for run, value in [(plain, 3.0), (program, 4.0), (first, 5.0), (program, 6.0)])

    interrupt(moment, action)
    assert end(program, BAD) == "failed on 13.0"
    assert seen == [4.0, 4.0, 10.0, 6.0]
    assert [end(program, value) for value in (7.0, 8.0)] == [7.0, 8.0]
    assert reported() == 1 and running.frame.pending is None


@pytest.mark.contract("X2")
@moments
def test_a_signals_handler_whose_own_callback_fails(program: Any, interrupt: Any, moment: tuple[str, str]) -> None:
    another = jax.jit(lambda x: hcb.pure_callback(lambda x: checked(x - 1) + 1, SCALAR, x))
    seen = [end(another, value) for value in (1.0, 2.0)]
    interrupt(moment, lambda: seen.extend(end(run, value) for run, value in [(another, 14.0), (another, 3.0)]))
    assert end(program, BAD) == "failed on 13.0"
    assert seen == [1.0, 2.0, "failed on 13.0", 3.0]
    interrupt(moment, lambda: seen.extend(end(run, value) for run, value in [(program, BAD), (program, 3.0)]))
    assert end(program, BAD) == "failed on 13.0"
    assert seen[4:] == ["failed on 13.0", 3.0]
    assert [end(program, value) for value in (7.0, 8.0)] == [7.0, 8.0]
    assert reported() == 4 and running.frame.pending is None


@pytest.mark.contract("H15")
@moments
def test_an_interrupt_between_a_failure_and_its_end(program: Any, interrupt: Any, moment: tuple[str, str]) -> None:
    def action() -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        interrupt(moment, action)
        # JAX makes a ValueError of what a handler raises.
        assert end(program, BAD) in (ValueError, KeyboardInterrupt)
        # At the same line, another one, and by JAX's slow dispatch. One of these may have to raise what is left.
        rest = [end(program, 3.0), *(end(program, value) for value in (4.0, 5.0)), end(program, jnp.float32(6))]
        assert rest in ([3.0, 4.0, 5.0, 6.0], ["failed on 13.0", 4.0, 5.0, 6.0]), f"{rest}"
        assert reported() == 1 and running.frame.pending is None


@pytest.mark.contract("X2")
@pytest.mark.parametrize("how", ["first run", "eager tap", "eager call", "barrier"])
def test_what_nobody_could_raise_is_raised_by_what_comes_next(program: Any, interrupt: Any, how: str) -> None:
    if _compat.place_of_hook is None:
        pytest.skip("this JAX has no hook, so errors are raised where they happen")
    # Somebody puts the hook out, past the place that JAX itself changes.
    interrupt(("return", "in_any_order"), lambda: _compat.place_of_hook.set_local(None))
    assert end(program, BAD) == 0.0
    runs: dict[str, Callable[[], Any]] = {
        "first run": lambda: jax.jit(lambda x: hcb.pure_callback(checked, SCALAR, x) * 3)(1.0),
        "eager tap": lambda: hcb.id_tap(lambda value, transforms: None, 1.0),
        "eager call": lambda: hcb.call(checked, 1.0, result_shape=SCALAR),
        "barrier": hcb.barrier_wait,
    }
    with pytest.raises((jax.errors.JaxRuntimeError, hcb.CallbackException), match=r"failed on 13\.0") as caught:
        runs[how]()
    if how != "barrier":
        assert any("started earlier" in note for note in caught.value.__notes__)
        assert reported() == 1
    for name in ("first run", "eager tap", "eager call"):
        # Once is enough, and from a barrier too.
        runs[name]()
    assert [end(program, value) for value in (7.0, 8.0)] == [7.0, 8.0]


@pytest.mark.contract("X2")
@moments
def test_the_check_for_nans_goes_on_while_a_failure_waits(
    program: Any, interrupt: Any, moment: tuple[str, str]
) -> None:
    with jax.debug_nans(True):
        logarithm = jax.jit(lambda x: jnp.log(x))
        for value in (1.0, 2.0):
            logarithm(value)
        seen: list[str] = []

        def action() -> None:
            try:
                seen.append(f"{logarithm(-1.0)}")
            except FloatingPointError:
                seen.append("an error")

        interrupt(moment, action)
        assert end(program, BAD) == "failed on 13.0"
        assert seen == ["an error"]
        action()
        assert seen == ["an error"] * 2
    assert f"{logarithm(-1.0)}" == "nan"
    assert reported() == 1


@pytest.mark.contract("X2")
@moments
def test_a_check_for_nans_that_begins_while_a_failure_waits(
    program: Any, interrupt: Any, moment: tuple[str, str]
) -> None:
    logarithm = jax.jit(lambda x: jnp.log(x))
    for value in (1.0, 2.0):
        logarithm(value)
    checking = jax.debug_nans(True)
    interrupt(moment, checking.__enter__)
    assert end(program, BAD) == "failed on 13.0"
    with pytest.raises(FloatingPointError):
        logarithm(-1.0)
    checking.__exit__(None, None, None)
    assert f"{logarithm(-1.0)}" == "nan"
    assert reported() == 1
