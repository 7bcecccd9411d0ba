"""X1, H11: large copies go past the processor's caches, and are right to the last byte."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from hostcb._native.library import library
from hostcb._runtime.memory import copying
from hostcb._runtime.memory.copying import (
    COPIES_BEFORE_TRIAL,
    LEAST_BYTES,
    MOST_TRIED_BYTES,
    copy_into,
    copy_into_queue,
)

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


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the copies that go past the caches; without any trial yet."""
    sizes: list[int] = []
    counting = types.SimpleNamespace(hostcb_copy=lambda to, source, nbytes: sizes.append(nbytes))
    monkeypatch.setattr(copying.library, "free", counting)
    monkeypatch.setattr(copying, "trials", copying.Trials())
    return sizes


@pytest.mark.parametrize("copy", [copy_into, copy_into_queue])
def test_only_large_copies_go_past_the_caches(passing: list[int], copy: Any) -> None:
    for nbytes in (LEAST_BYTES - 1, LEAST_BYTES):
        copy(np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8))
    assert passing == [LEAST_BYTES]


@pytest.mark.parametrize("copy", [copy_into, copy_into_queue])
def test_a_copy_of_a_mebibyte_goes_through_the_caches(passing: list[int], copy: Any) -> None:
    """What reads it next finds it there, whatever the number in the source is."""
    copies(copy, 1 << 20, 1)
    assert not passing


def copies(copy: Any, nbytes: int, count: int) -> None:
    source, target = numbered(nbytes), np.zeros(nbytes, np.uint8)
    for _ in range(count):
        copy(target, source)


@pytest.mark.parametrize("quicker", [True, False])
def test_a_trial_decides_after_some_copies_of_a_size(
    passing: list[int], quicker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(copying, "is_quicker_past_caches", lambda nbytes: tried.append(nbytes) or quicker)
    copies(copy_into, LEAST_BYTES, COPIES_BEFORE_TRIAL)
    assert not tried and len(passing) == COPIES_BEFORE_TRIAL
    copies(copy_into, LEAST_BYTES + 1, 3)
    assert tried == [LEAST_BYTES] and len(passing) == COPIES_BEFORE_TRIAL + 3 * quicker
    # Each power of two has a trial of its own.
    copies(copy_into, 2 * LEAST_BYTES, 1)
    assert tried == [LEAST_BYTES] and passing[-1] == 2 * LEAST_BYTES


@pytest.mark.parametrize(("copy", "nbytes"), [(copy_into_queue, LEAST_BYTES), (copy_into, MOST_TRIED_BYTES)])
def test_tapped_values_and_the_largest_are_not_tried(
    passing: list[int], copy: Any, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "is_quicker_past_caches", lambda nbytes: pytest.fail("there was a trial"))
    copies(copy, nbytes, COPIES_BEFORE_TRIAL + 1)
    assert passing == [nbytes] * (COPIES_BEFORE_TRIAL + 1)


@pytest.mark.parametrize(("past", "through"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_trial_takes_the_quicker_way(past: float, through: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def pass_caches(target: np.ndarray, source: np.ndarray) -> None:
        nonlocal now
        now += past

    class Clocked(np.ndarray):
        def __setitem__(self, place: Any, value: Any) -> None:
            nonlocal now
            now += through

    monkeypatch.setattr(copying, "pass_caches", pass_caches)
    monkeypatch.setattr(copying.time, "perf_counter", lambda: now)
    zeros = np.zeros
    monkeypatch.setattr(copying.np, "zeros", lambda *args: zeros(*args).view(Clocked))
    assert copying.is_quicker_past_caches(8) is (past < through)


def test_a_trial_that_finds_no_memory_is_made_later(passing: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [MemoryError, MemoryError, False]

    def trial(nbytes: int) -> bool:
        answer = answers.pop(0)
        if answer is MemoryError:
            raise MemoryError
        return bool(answer)

    monkeypatch.setattr(copying, "is_quicker_past_caches", trial)
    copies(copy_into, LEAST_BYTES, COPIES_BEFORE_TRIAL + 2)
    assert len(answers) == 1 and len(passing) == COPIES_BEFORE_TRIAL + 2
    copies(copy_into, LEAST_BYTES, 2)
    assert not answers and len(passing) == COPIES_BEFORE_TRIAL + 2


def test_a_real_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way the machine takes, every byte arrives."""
    monkeypatch.setattr(copying, "trials", copying.Trials())
    source = numbered(LEAST_BYTES + BESIDE)
    for _ in range(COPIES_BEFORE_TRIAL + 2):
        target = np.zeros_like(source)
        copy_into(target, source)
        assert np.array_equal(target, source)
    assert library.free is None or copying.trials._past.keys() == {LEAST_BYTES.bit_length()}


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "free", None)
    target = np.zeros(LEAST_BYTES, np.uint8)
    copy_into(target, numbered(LEAST_BYTES))
    assert np.array_equal(target, numbered(LEAST_BYTES))
