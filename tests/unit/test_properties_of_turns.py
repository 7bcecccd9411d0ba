"""Devices that take turns, over any row of executions: every call is made, and turns are given up for good."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support import sessions
from test_turns import execution

from hostcb._runtime.dispatch.turns import LEAST_CALLS, Turns

pytestmark = pytest.mark.contract("H5", "H9")

DEVICES = 3
COUNTS = st.sampled_from([1, LEAST_CALLS - 1, LEAST_CALLS, LEAST_CALLS + 9])


class TurnsOfExecutions(RuleBasedStateMachine):
    """Each step is an execution, in which each device has a thread."""

    def __init__(self) -> None:
        super().__init__()
        # So short that devices which wait in vain do not do so for long.
        self.patches = [
            mock.patch("hostcb._runtime.dispatch.turns.LOOK_UP", 0.01),
            mock.patch("hostcb._runtime.dispatch.turns.LEAST_PROGRESS", 1),
            mock.patch("hostcb._runtime.dispatch.turns.MOST_SLOW", 1),
        ]
        for patch in self.patches:
            patch.start()
        self.turns = Turns()
        self.counts = dict.fromkeys(range(DEVICES), LEAST_CALLS)
        self.gave_up = False

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()

    def run(self, counts: dict[int, int]) -> None:
        calls = dict.fromkeys(counts, 0)
        within: list[int] = []

        def function(device: int) -> None:
            calls[device] += 1
            within.append(device)

        execution(self.turns, counts, function)
        assert calls == counts
        assert len(within) == sum(counts.values())

    @rule()
    def the_same_once_more(self) -> None:
        self.run(self.counts)

    @rule(counts=st.dictionaries(st.integers(0, DEVICES - 1), COUNTS, min_size=1))
    def another(self, counts: dict[int, int]) -> None:
        self.counts = counts
        self.run(counts)

    @rule(device=st.integers(0, DEVICES - 1))
    def one_device_fails(self, device: int) -> None:
        def function(each: int) -> None:
            if each == device:
                raise ValueError("failed on purpose")

        if device in self.counts:
            with pytest.raises(AssertionError, match="failed on purpose"):
                execution(self.turns, self.counts, function)

    @invariant()
    def nobody_waits_and_what_is_given_up_stays_so(self) -> None:
        assert not self.turns._waiting
        assert self.turns._given_up >= self.gave_up
        self.gave_up = self.turns._given_up


TurnsOfExecutions.TestCase.settings = settings(max_examples=sessions.rounds(10, 100), stateful_step_count=8)
TestTurnsOfExecutions = TurnsOfExecutions.TestCase
