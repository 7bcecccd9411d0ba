"""The suite's copies of the numbers at which hostcb takes another way are those of hostcb."""

from __future__ import annotations

import pytest
from support.subprocesses import run_program

from conformance.spec import thresholds
from hostcb._native import library
from hostcb._primitive import batching
from hostcb._runtime.dispatch import cpp_dispatch
from hostcb._runtime.executions import barrier, executions
from hostcb._runtime.memory import blocks, pages
from hostcb._runtime.queue import device_queue, rings


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("RING_VALUE", library.MOST_INSIDE),
        ("BLOCK", blocks.LEAST_BYTES),
        ("PAST_CACHES", pages.LEAST_IN_LARGE_PAGES),
        ("RING", rings.CAPACITY),
        ("READ_AHEAD", rings.MOST_READ),
        ("FAST_OPERATIONS", cpp_dispatch.MOST_OPERATIONS),
        ("FAST_BYTES", cpp_dispatch.MOST_BYTES),
        ("FAST_STEPS", cpp_dispatch.MOST_STEPS),
        ("UNROLLED_ELEMENTS", batching.MOST_UNROLLED),
        ("LIVE_EXECUTIONS", executions.MANY),
        ("WAITING_EXECUTIONS", executions.MOST_WAITING),
        ("GENERATIONS", barrier.GENERATIONS),
    ],
)
def test_the_suites_number_is_hostcbs(name: str, number: int) -> None:
    assert getattr(thresholds, name) == number


SHARED = """
from hostcb._native.library import MOST_INSIDE
from hostcb._runtime.memory.blocks import MOST_READY
from hostcb._runtime.memory.pages import LEAST_IN_LARGE_PAGES
from hostcb._runtime.queue.device_queue import CACHED

print(json.dumps([MOST_INSIDE, MOST_READY, LEAST_IN_LARGE_PAGES, CACHED]))
"""


def test_without_the_extension_the_numbers_of_the_files_in_c_stay() -> None:
    """Programs behave alike with and without it, which has these numbers itself."""
    without = run_program(SHARED, devices=None, env={"HOSTCB_NATIVE": "0"}, timeout=60)
    expected = [library.MOST_INSIDE, blocks.MOST_READY, pages.LEAST_IN_LARGE_PAGES, device_queue.CACHED]
    assert without.json() == expected
