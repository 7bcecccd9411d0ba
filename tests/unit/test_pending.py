"""X2, H15: of the errors that native dispatches will raise at their ends, each belongs to its own dispatch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import pytest

from hostcb._runtime.dispatch import postponed
from hostcb._runtime.dispatch.postponed import LATE, Pending
from hostcb._runtime.dispatch.programs import Execution, Program
from hostcb._threads.running import running

pytestmark = pytest.mark.contract("X2", "H15")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Of what the tests leave in this thread's state, nothing stays."""
    frame = running.frame
    yield
    frame.pending, frame.execution, frame.depth = None, None, 0
    # The end of a dispatch takes the hook away.
    assert int(jax.jit(lambda x: x + 1)(1)) == 2


def handler() -> FrameType:
    return sys._getframe()


def inner(function: Any) -> Any:
    return function()


def outer(function: Any) -> Any:
    return inner(function)


def test_a_handler_with_the_same_wrappers_is_of_the_same_dispatch() -> None:
    pending: list[Pending] = []

    def fails() -> None:
        pending.append(Pending(ValueError("failed"), Program(), sys._getframe()))

    def comes_later() -> tuple[list[str], bool]:
        wrappers = pending[0].calls(sys._getframe())
        assert wrappers is not None
        return [frame.f_code.co_name for frame in wrappers], pending[0].is_like(wrappers)

    # Both handlers are called at one instruction of this frame, as in one dispatch.
    _, (names, alike) = [outer(each) for each in (fails, comes_later)]
    assert (names, alike) == (["inner", "outer"], True)


def failed(text: str) -> Pending:
    return Pending(ValueError(text), Program(), sys._getframe())


def test_of_several_errors_that_were_not_raised_the_oldest_is() -> None:
    running.frame.pending = [failed("first"), failed("second")]
    raise_error, others = postponed._at_the_end(sys._getframe())
    assert raise_error is not None and not others
    with pytest.raises(ValueError, match="first") as caught:
        raise_error()
    assert caught.value.__notes__ == [LATE]


def test_the_end_of_a_dispatch_raises_the_error_of_its_first_failure() -> None:
    running.frame.pending = []

    def fails(text: str) -> Any:
        return lambda: running.frame.pending.append(Pending(ValueError(text), Program(), sys._getframe()))

    def ends() -> Any:
        return postponed._at_the_end(sys._getframe(1))

    # All are called at one instruction of this frame, as in one dispatch.
    *_, (raise_error, others) = [each() for each in (fails("first"), fails("second"), ends)]
    with pytest.raises(ValueError, match="first") as caught:
        raise_error()
    assert not others and not hasattr(caught.value, "__notes__")


def test_a_dispatch_that_may_be_a_nested_one_fails_too_and_older_failures_stay() -> None:
    program = Program()
    running.frame.pending = [failed("older")]

    def fails() -> None:
        running.frame.pending.append(Pending(ValueError("failed"), program, sys._getframe()))

    def comes_later() -> bool:
        return postponed.has_failed(program)

    def in_wrappers() -> Any:
        return outer(comes_later)

    # At one instruction of this frame, as in one dispatch, but with other frames between.
    _, is_failed = [each() for each in (fails, in_wrappers)]
    assert is_failed
    assert [str(each.error) for each in running.frame.pending] == ["older", "failed", "failed"]


@pytest.mark.parametrize("same", [True, False], ids=["of_the_same_program", "of_another"])
def test_the_execution_around_a_native_dispatch_does_not_take_its_failure(same: bool) -> None:
    program, device = Program(["pure_callback"]), jax.devices()[0]
    program.takes_cpp_dispatch = True
    around = Execution(program if same else Program(), (device,), (device,))
    failure = around.failure = ValueError("failed")
    holder = around.dispatch.held_by(threading.Event())
    # A callback of `around` dispatches; its handler is one deeper.
    running.frame.execution, running.frame.depth = around, 2
    assert (lambda: postponed.postpone(program, failure, inside=1))()
    del holder
    assert around.failure is (None if same else failure)
    (pending,) = running.frame.pending
    assert pending.program is program and isinstance(pending.error, jax.errors.JaxRuntimeError)
