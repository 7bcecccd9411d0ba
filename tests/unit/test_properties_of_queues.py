"""A device's queue beside a model of it: whatever comes, in whatever order, and wherever it is interrupted."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.helpers import DEADLINE

from hostcb._runtime.queue.device_queue import DeviceQueue

pytestmark = pytest.mark.contract("H5", "H12")

BUDGET = 8


class Interrupted(BaseException):
    """As of Ctrl-C, while a function is run."""


class Receiver:
    """A callback with values of some size, whose function is interrupted before it begins or when it has begun."""

    callback: Any = None

    def __init__(self, name: int, nbytes: int, interrupted: str | None, ran: list[int]):
        self.name, self.nbytes, self.interrupted, self.ran = name, nbytes, interrupted, ran

    def deliver(self, device: Any, item: Any) -> None:
        interrupted, self.interrupted = self.interrupted, None
        if interrupted == "before":
            raise Interrupted
        item.hand_to(lambda: self.ran.append(self.name))
        if interrupted == "within":
            raise Interrupted


class QueueBesideItsModel(RuleBasedStateMachine):
    """One thread does all the work, so that the model knows what has run."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.ran = DeviceQueue(jax.devices()[0]), []
        self.queue.budget = BUDGET
        # Without a consumer.
        self.queue._wake = lambda: None  # type: ignore[method-assign]
        # Name, bytes and interruption of each that has not run, and the names of those that have.
        self.pending: deque[list[Any]] = deque()
        self.expected: list[int] = []
        self.count = 0

    def run_oldest(self) -> None:
        name, _, interrupted = self.pending[0]
        self.pending[0][2] = None
        if interrupted == "before":
            raise Interrupted
        self.pending.popleft()
        self.expected.append(name)
        if interrupted == "within":
            raise Interrupted

    def make_room(self, nbytes: int) -> None:
        # What has no bytes is in nobody's way, not even of a value that is larger than the budget.
        while (held := sum(size for _, size, _ in self.pending)) and held + nbytes > BUDGET:
            self.run_oldest()

    def both(self, real: Any, model: Any) -> bool:
        """Do it, and have the model do it; whether both came to the end."""
        ended = []
        for each in (real, model):
            try:
                each()
                ended.append(True)
            except Interrupted:
                ended.append(False)
        assert ended[0] == ended[1], f"interrupted: queue {not ended[0]}, model {not ended[1]}"
        return ended[0]

    @rule(nbytes=st.integers(0, BUDGET + 3), interrupted=st.sampled_from([None, None, None, "before", "within"]))
    def put(self, nbytes: int, interrupted: str | None) -> None:
        self.count += 1
        receiver = Receiver(self.count, nbytes, interrupted, self.ran)
        if self.both(lambda: self.queue.put(receiver, ()), lambda: self.make_room(nbytes)):
            self.pending.append([self.count, nbytes, interrupted])

    @rule(nbytes=st.integers(1, BUDGET))
    def room_is_made(self, nbytes: int) -> None:
        self.both(lambda: self.queue.make_room(nbytes), lambda: self.make_room(nbytes))

    @rule(work_off=st.sampled_from([DeviceQueue.drain, DeviceQueue.join, DeviceQueue.stop]))
    def everything_is_run(self, work_off: Any) -> None:
        def model() -> None:
            while self.pending:
                self.run_oldest()

        self.both(lambda: work_off(self.queue), model)

    @rule()
    def disowned_in_a_child(self) -> None:
        self.queue.reset_after_fork()
        self.pending.clear()

    @invariant()
    def the_queue_is_as_the_model(self) -> None:
        assert self.ran == self.expected
        assert [item.receiver.name for item in self.queue.items] == [name for name, _, _ in self.pending]
        assert self.queue.items.held() == (len(self.pending), sum(nbytes for _, nbytes, _ in self.pending))
        assert self.queue.held() <= BUDGET or sum(size > 0 for _, size, _ in self.pending) == 1

    def teardown(self) -> None:
        for item in self.queue.items:
            item.receiver.interrupted = None
        self.queue.drain()


TestQueueBesideItsModel = QueueBesideItsModel.TestCase


@given(st.lists(st.lists(st.integers(0, BUDGET + 3), max_size=20), min_size=1, max_size=4))
def test_each_threads_values_run_once_and_in_order(sizes: list[list[int]]) -> None:
    queue, ran = DeviceQueue(jax.devices()[0]), []
    queue.budget = BUDGET

    def put(thread: int) -> None:
        for number, nbytes in enumerate(sizes[thread]):
            queue.put(Receiver(1000 * thread + number, nbytes, None, ran), ())

    threads = [threading.Thread(target=put, args=(thread,)) for thread in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    queue.stop()
    for thread, each in enumerate(sizes):
        own = [name for name in ran if name // 1000 == thread]
        assert own == [1000 * thread + number for number in range(len(each))]
    assert len(ran) == sum(map(len, sizes)) and queue.held() == 0
