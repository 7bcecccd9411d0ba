"""The suite's copies of the numbers at which hostcb takes another way are those of hostcb."""

from __future__ import annotations

import pytest

from conformance.spec import thresholds
from hostcb._native import library
from hostcb._primitive import batching, eager
from hostcb._runtime.dispatch import cpp_dispatch, turns
from hostcb._runtime.executions import barrier, executions
from hostcb._runtime.memory import blocks, copying, pages
from hostcb._runtime.queue import rings


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("RING_VALUE", library.MOST_BYTES),
        ("BLOCK", blocks.LEAST_BYTES),
        ("PAST_CACHES", copying.LEAST_BYTES),
        ("PAST_CACHES", pages.LEAST_BYTES),
        ("RING", rings.CAPACITY),
        ("READ_AHEAD", rings.MOST_READ),
        ("FAST_OPERATIONS", cpp_dispatch.MOST_OPERATIONS),
        ("FAST_BYTES", cpp_dispatch.MOST_BYTES),
        ("FAST_STEPS", cpp_dispatch.MOST_STEPS),
        ("UNROLLED_ELEMENTS", batching.MOST_UNROLLED),
        ("LIVE_EXECUTIONS", executions.MANY),
        ("WAITING_EXECUTIONS", executions.MOST_WAITING),
        ("LEAST_TURN", turns.LEAST_CALLS),
        ("MOST_TURN", turns.MOST_CALLS),
        ("EAGER_PROGRAMS", eager.MOST_COMPILED),
        ("GENERATIONS", barrier.GENERATIONS),
    ],
)
def test_the_suites_number_is_hostcbs(name: str, number: int) -> None:
    assert getattr(thresholds, name) == number
