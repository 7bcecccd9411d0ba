"""X1, H11: large copies go past the processor's caches, and are right to the last byte."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from hostcb._native.library import library
from hostcb._runtime import copying
from hostcb._runtime.copying import LEAST_BYTES, copy_into

pytestmark = pytest.mark.contract("X1", "H11")

# More than a line of the caches, and not a multiple of it.
BESIDE = 77


def numbered(nbytes: int) -> np.ndarray:
    # A prime period: a page that went to the place of another one would show.
    return np.resize(np.arange(251, dtype=np.uint8), nbytes)


@pytest.mark.parametrize("nbytes", [0, 1, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 1, LEAST_BYTES + (1 << 14) + 63])
@pytest.mark.parametrize(("to", "begin"), [(0, 0), (1, 0), (63, 5), (64, 1)])
def test_every_byte_is_copied_and_no_other_changes(nbytes: int, to: int, begin: int) -> None:
    source = numbered(nbytes + begin)[begin:]
    memory = np.full(nbytes + to + BESIDE, 255, np.uint8)
    copy_into(memory[to : to + nbytes], source)
    assert np.array_equal(memory[to : to + nbytes], source)
    assert (memory[:to] == 255).all() and (memory[to + nbytes :] == 255).all()


WORDS = LEAST_BYTES // 4
SOURCES: dict[str, Any] = {
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
    target = np.zeros((WORDS // 2, 2), np.float32)
    copy_into(target, source)
    assert np.array_equal(target, source)


def test_a_target_with_gaps() -> None:
    memory = np.zeros((WORDS, 2), np.float32)
    source = np.arange(WORDS, dtype=np.float32)
    copy_into(memory[:, 1], source)
    assert np.array_equal(memory[:, 1], source) and not memory[:, 0].any()


def test_only_large_copies_go_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    counting = types.SimpleNamespace(hostcb_copy=lambda to, source, nbytes: sizes.append(nbytes))
    monkeypatch.setattr(copying.library, "free", counting)
    for nbytes in (LEAST_BYTES - 1, LEAST_BYTES):
        copy_into(np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8))
    assert sizes == [LEAST_BYTES]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "free", None)
    target = np.zeros(LEAST_BYTES, np.uint8)
    copy_into(target, numbered(LEAST_BYTES))
    assert np.array_equal(target, numbered(LEAST_BYTES))
