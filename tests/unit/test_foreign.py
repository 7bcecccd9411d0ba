"""What hostcb notes of JAX's own callbacks in a module."""

from __future__ import annotations

import pytest

from hostcb._runtime.dispatch.programs import Program
from hostcb._threads.foreign import ForeignCallbacks
from hostcb._threads.running import inside_callback, running


def own(x: int) -> tuple[int, bool]:
    return x + 1, inside_callback()


@pytest.mark.parametrize("hostcb_first", [True, False])
def test_a_program_with_jaxs_own_callbacks_is_not_alone(hostcb_first: bool) -> None:
    module, program = ForeignCallbacks(), Program()
    if hostcb_first:
        module.attach_program(program)
        assert program.has_only_own_callbacks
        module.wrap(own)
    else:
        module.wrap(own)
        module.attach_program(program)
    assert not program.has_only_own_callbacks


@pytest.mark.contract("H13")
def test_a_thread_is_inside_a_callback_of_jax_and_then_no_more() -> None:
    module = ForeignCallbacks()
    module.attach_program(Program())
    called = module.wrap(own)
    frame = running.frame
    before = frame.depth
    assert called(1) == (2, True)
    assert frame.depth == before, "later taps of this thread would walk its stack"

    def failing() -> None:
        raise ValueError("failed on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        module.wrap(failing)()
    assert frame.depth == before
