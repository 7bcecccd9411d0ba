"""X1, B2: large results, for whose memory large pages are asked, are the function's to the last byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hostcb as hcb
from hostcb._runtime.memory import pages
from hostcb._runtime.memory.pages import LEAST_IN_LARGE_PAGES

WORDS = LEAST_IN_LARGE_PAGES // 4
SHAPE = jax.ShapeDtypeStruct((WORDS,), np.float32)
BOTH = (SHAPE, jax.ShapeDtypeStruct((WORDS, 1), np.int32))


def counted() -> np.ndarray:
    return np.arange(WORDS, dtype=np.float32)


def written(_: Any, out: Any, x: Any) -> None:
    np.asarray(out)[...] = counted() + np.asarray(x)


KINDS: dict[str, Callable[[Any], Any]] = {
    "pure": lambda x: hcb.pure_callback(lambda value: counted() + value, SHAPE, x),
    "io": lambda x: hcb.io_callback(lambda value: counted() + value, SHAPE, x, ordered=True),
    "call": lambda x: hcb.call(lambda value: counted() + value, x, result_shape=SHAPE),
    "buffer": lambda x: hcb.buffer_callback(written, SHAPE)(x),
    "dlpack": lambda x: hcb.dlpack_callback(lambda value: counted() + np.asarray(value), SHAPE)(x),
}


@pytest.mark.contract("X1")
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_result_is_what_the_function_made(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[int] = []
    plain = pages._madvise

    def counting(begin: int, length: int, advice: int) -> int:
        advised.append(length)
        return plain(begin, length, advice) if plain is not None else 0

    monkeypatch.setattr(pages, "_madvise", counting)
    program = jax.jit(KINDS[kind])
    for value in (1.0, 2.0):
        out = np.asarray(program(jnp.float32(value)))
        assert np.array_equal(out, counted() + np.float32(value))
    # All of it but what lies before the first whole page.
    least = LEAST_IN_LARGE_PAGES - 1_000_000
    assert len(advised) == 2 and all(least < length <= LEAST_IN_LARGE_PAGES for length in advised)


@pytest.mark.contract("X1")
def test_only_large_memory_in_one_piece_gets_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[int] = []
    monkeypatch.setattr(pages, "_madvise", lambda begin, length, advice: advised.append(length))
    pages.advise(np.zeros(LEAST_IN_LARGE_PAGES - 1, np.uint8))
    # What follows its first byte is not its own.
    pages.advise(np.zeros(LEAST_IN_LARGE_PAGES, np.uint8)[::-1])
    assert not advised
    pages.advise(np.zeros(LEAST_IN_LARGE_PAGES, np.uint8))
    assert len(advised) == 1


@pytest.mark.contract("X1")
@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_a_system_whose_library_has_no_madvise_gives_no_large_pages(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(_: None) -> None:
        raise error("no madvise")

    monkeypatch.setattr(pages.sys, "platform", "linux")
    monkeypatch.setattr(pages.ctypes, "CDLL", lacks)
    assert pages._advisor() is None


@pytest.mark.contract("X1")
def test_one_of_several_results_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    program = jax.jit(lambda x: hcb.pure_callback(lambda v: (counted() + v, v), (SHAPE, x), x))
    many, one = program(jnp.float32(3))
    assert np.array_equal(np.asarray(many), counted() + 3) and float(one) == 3
    monkeypatch.setattr(pages, "_madvise", None)
    both = jax.jit(
        lambda x: hcb.pure_callback(lambda v: (counted(), counted().reshape(-1, 1).astype(np.int32)), BOTH, x)
    )
    first, second = both(jnp.float32(3))
    assert np.array_equal(np.asarray(first), np.asarray(second)[:, 0])


@pytest.mark.contract("B2")
def test_what_is_shared_with_an_operand_keeps_its_value() -> None:
    def add_one(_: Any, out: Any, x: Any) -> None:
        array = np.asarray(out)
        np.add(array, 1, out=array)

    program = jax.jit(hcb.buffer_callback(add_one, SHAPE, input_output_aliases={0: 0}))
    assert np.array_equal(np.asarray(program(jnp.asarray(counted()))), counted() + 1)


@pytest.mark.parametrize(
    "array",
    [np.zeros(0), np.zeros(()), np.zeros(WORDS * 2, np.float32)[::2], np.zeros(WORDS + 3, np.float32)[3:]],
    ids=["empty", "scalar", "strided", "between_pages"],
)
def test_advice_is_for_anything(array: np.ndarray) -> None:
    assert pages.advise(array) is array and not array.any()
