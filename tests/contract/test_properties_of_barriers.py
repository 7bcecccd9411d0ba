"""Programs from several threads on several devices, some of whose callbacks fail, and barriers between them."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from support import sessions
from support.helpers import DEADLINE

import hostcb as hcb

pytestmark = pytest.mark.contract("H5", "H13", "H14", "H15")

DEVICES = 2
SHAPE = jax.ShapeDtypeStruct((), np.int32)
seen: list[tuple[int, str, int]] = []
"""Device, kind and number of each callback. Of the device only its two programs know, one each."""


def function(device: int, kind: str, number: Any, *_: Any) -> Any:
    seen.append((device, kind, int(number)))
    if number < 0:
        raise ValueError(f"number {number} failed")
    return np.int32(number)


KINDS = {
    "tap": lambda f, x: hcb.id_tap(f, x),
    "call": lambda f, x: hcb.call(f, x, result_shape=SHAPE),
    "io": lambda f, x: hcb.io_callback(f, SHAPE, x, ordered=True),
    "debug": lambda f, x: hcb.debug.callback(f, x, ordered=True),
}


@functools.cache
def program(device: int, kind: str) -> Any:
    called = functools.partial(function, device, kind)
    return jax.jit(lambda x: (KINDS[kind](called, x), x + 1)[1])


class Barriers(RuleBasedStateMachine):
    """What was started since the last barrier, and what must have failed."""

    def __init__(self) -> None:
        super().__init__()
        seen.clear()
        self.expected: list[tuple[int, str, int]] = []
        self.failures: list[int] = []
        self.count = 0

    @rule(
        kind=st.sampled_from([*KINDS]),
        device=st.integers(0, DEVICES - 1),
        fails=st.sampled_from([False, False, True]),
        from_another_thread=st.booleans(),
    )
    def start(self, kind: str, device: int, fails: bool, from_another_thread: bool) -> None:
        self.count += 1
        number = -self.count if fails else self.count
        operand = jax.device_put(jnp.int32(number), jax.devices()[device])
        outcome: list[Any] = []

        def run() -> None:
            try:
                # Taps are not waited for: the device goes on.
                outcome.append(int(program(device, kind)(operand)))
            except jax.errors.JaxRuntimeError as error:
                outcome.append(str(error))

        if from_another_thread:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join(DEADLINE)
        else:
            run()
        self.expected.append((device, kind, number))
        if fails:
            self.failures.append(number)
        if fails and kind != "tap":
            assert f"number {number} failed" in outcome[0]
        else:
            assert outcome == [number + 1]

    @rule()
    def barrier(self) -> None:
        if self.failures:
            with pytest.raises(hcb.CallbackException) as caught:
                hcb.barrier_wait()
            texts = [failure.text for failure in caught.value.failures]
            assert len(texts) == len(self.failures), f"{len(texts)} failures, should be {self.failures}"
            for number in self.failures:
                assert any(f"number {number} failed" in text for text in texts), f"{number} is not among {texts}"
        else:
            hcb.barrier_wait()
        for device in range(DEVICES):
            ran, wanted = ([each for each in what if each[0] == device] for what in (seen, self.expected))
            assert ran == wanted, f"device {device}: {ran}, but should be {wanted}"
        self.failures = []

    def teardown(self) -> None:
        self.barrier()


Barriers.TestCase.settings = settings(max_examples=sessions.rounds(15, 200), stateful_step_count=20)
TestBarriers = Barriers.TestCase
