"""Typed keys of JAX, which callbacks receive as their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Batching, Runs
from ..harness.case import Case, case

WITHOUT_VALUE = np.zeros(2, jax.dtypes.float0)

BATCHED = "id_tap call call_sequential pure_callback_sequential io_callback debug_callback"
KEY_WORDS = 2
"""The number of words in a key of JAX's default generator."""
SEED = 2**32 - 8
"""A word that no narrower type has, and no float32 beside its neighbours."""
TRIPS = 3


@case("jit", "id_tap buffer_callback dlpack_callback", "H1 B1 D1")
def gives_keys_back(case: Case) -> None:
    """A tap returns the typed keys of its tree, beside a leaf without a value, and buffers of keys become keys."""

    def fill(context: Any, out: Any, words: Any) -> None:
        np.asarray(out)[...] = np.asarray(words)[::-1]

    def through(keys: Any) -> Any:
        if case.callback.function == "id_tap":
            return case.implementation.tap(lambda *_: None, {"a": WITHOUT_VALUE, "b": keys})["b"]
        if case.callback.function == "buffer_callback":
            return case.library.buffer_callback(fill, keys)(keys)
        return case.library.dlpack_callback(lambda words: np.asarray(words)[::-1].copy(), keys)(keys)

    for generator in ("threefry2x32", "rbg"):
        keys = jax.random.split(jax.random.key(7, impl=generator), 3)
        expected = jax.random.key_data(keys if case.callback.function == "id_tap" else keys[::-1])
        for run in (through, jax.jit(through)):
            result = run(keys)
            case.same("result", Stage.RESULT, result.dtype, keys.dtype, "the type of keys")
            case.gives(expected, jax.random.key_data, result)


@case("jit", BATCHED, "H1 H3 X2 X3 X4")
def typed_keys(case: Case) -> None:
    """A callback gets a typed key as its words: as an argument, in a tree, in a vmap's batch, in a loop's carry."""
    seen: list[tuple[int, ...]] = []

    def host(operand: Any) -> Any:
        for leaf in map(words_of, jax.tree.leaves(operand)):
            if leaf.dtype == np.uint32:
                seen.extend(tuple(row) for row in leaf.reshape(-1, KEY_WORDS).tolist())
        return np.float32(1)

    def apply(operand: Any) -> Any:
        result = case.apply(host, operand, np.float32(1))
        return result if case.callback.returns_new_value else np.float32(1)

    def looped(key: Any) -> Any:
        def step(carry: Any, _: Any) -> tuple[Any, Any]:
            return jax.random.wrap_key_data(jax.random.key_data(carry) + 1), apply(carry)

        return jax.lax.scan(step, key, None, length=TRIPS)[1]

    # Of words, since JAX compiles several programs to make keys.
    several: list[tuple[int, ...]] = [(number, SEED + number) for number in range(TRIPS)]
    first = several[0]
    key, keys = (jax.random.wrap_key_data(jnp.array(words, jnp.uint32)) for words in (first, several))
    programs: dict[str, tuple[Callable[[Any], Any], Any, list[tuple[int, ...]]]] = {
        "as an argument": (apply, key, [first]),
        "several in an array": (apply, keys, several),
        "in a tree": (lambda key: apply({"number": np.float32(2), "key": (key, key)}), key, [first, first]),
        "in the carry of a scan": (looped, key, several),
        "made by the program": (lambda seed: apply(jax.random.key(seed)), np.uint32(SEED), [first]),
    }
    if case.callback.batching is not Batching.REFUSED:
        programs["in a batch"] = (jax.vmap(apply), keys, several)
    # A pure callback may run once more.
    counted: Any = list if case.callback.runs is Runs.ONCE else set
    for label, (function, argument, expected) in programs.items():
        seen.clear()
        with case.part(f"a key {label}"):
            results = np.asarray(jax.jit(function)(argument))
            case.barrier()
            case.same("wrong operand", Stage.CALLBACK, sorted(counted(seen)), sorted(counted(expected)))
            case.check(bool((results == 1).all()), "result", Stage.RESULT, f"the results are {results}")


def words_of(leaf: Any) -> Any:
    """The words of a key; an implementation may pass the key itself or these words."""
    typed = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed else leaf)
