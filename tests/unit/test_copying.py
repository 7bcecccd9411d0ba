"""X1, H11: the copies of tapped values into blocks are right to the last byte; large ones go past the caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hostcb._native.library import MOST_INSIDE, library
from hostcb._runtime.memory.owners import Shape
from hostcb._runtime.memory.pages import LEAST_IN_LARGE_PAGES

pytestmark = [
    pytest.mark.contract("X1", "H11"),
    pytest.mark.skipif(library.held is None, reason="only the native extension has blocks"),
]

# C copies from here on past the caches.
LARGE = LEAST_IN_LARGE_PAGES
# More than a line of the caches, and not a multiple of it.
BESIDE = 77


def numbered(nbytes: int) -> np.ndarray:
    # A prime period: a page that went to the place of another one would show.
    return np.resize(np.arange(251, dtype=np.uint8), nbytes)


@pytest.mark.parametrize("nbytes", [0, 1, MOST_INSIDE + 1, LARGE - 1, LARGE, LARGE + 1, LARGE + (1 << 14) + 63])
@pytest.mark.parametrize(("to", "begin"), [(0, 0), (1, 0), (63, 5), (64, 1)])
def test_every_byte_is_copied_and_no_other_changes(nbytes: int, to: int, begin: int) -> None:
    source = numbered(nbytes + begin)[begin:]
    memory = np.full(nbytes + to + BESIDE, 255, np.uint8)
    library.free.hostcb_copy(memory.ctypes.data + to, source.ctypes.data, nbytes)
    assert np.array_equal(memory[to : to + nbytes], source)
    assert (memory[:to] == 255).all() and (memory[to + nbytes :] == 255).all()


WORDS = LARGE // 4
SOURCES: dict[str, Any] = {
    "as it is": lambda: np.arange(WORDS, dtype=np.float32).reshape(-1, 2),
    "transposed": lambda: np.arange(WORDS, dtype=np.float32).reshape(2, -1).T,
    "every second": lambda: np.arange(2 * WORDS, dtype=np.float32)[::2].reshape(-1, 2),
    "other type": lambda: np.arange(WORDS, dtype=np.int32).reshape(-1, 2),
    "other byte order": lambda: np.arange(WORDS, dtype=np.float32).astype(">f4").reshape(-1, 2),
    "broadcast": lambda: np.broadcast_to(np.float32(3), (WORDS // 2, 2)),
    "read-only": lambda: np.frombuffer(np.arange(WORDS, dtype=np.float32).tobytes(), np.float32).reshape(-1, 2),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_of_any_layout_and_type(name: str) -> None:
    source = SOURCES[name]()
    copied = Shape((WORDS // 2, 2), np.dtype(np.float32), 4 * WORDS).copy(source)
    assert np.array_equal(copied, source)
    assert copied.dtype == np.float32 and copied.flags.writeable and not np.shares_memory(copied, source)
