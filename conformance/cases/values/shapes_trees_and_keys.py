"""Operands of every shape and structure, and typed keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Batching, Runs
from ..harness.case import Case, case
from .element_types import arrives

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (0,), (2, 0, 3), (2, 3, 4), (1, 1, 1, 1, 1), (300, 200))

ONE, TWO, THREE = (np.full(2, number, np.float32) for number in (1, 2, 3))
TREES: tuple[Any, ...] = (
    (ONE, TWO),
    [ONE, TWO, THREE],
    {"b": ONE, "a": TWO},
    {"outer": {"inner": (ONE, [TWO])}, "none": None, "other": THREE},
)

BATCHED = "id_tap call call_sequential pure_callback_sequential io_callback debug_callback"
KEY_WORDS = 2
"""The number of words in a key of JAX's default generator."""
TRIPS = 3


@case("jit", "id_tap", "H1")
@case("jit", "call", "H3")
def shapes(case: Case) -> None:
    for shape in SHAPES:
        arrives(case, str(shape), np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


@case("jit", "id_tap", "H1")
@case("jit", "call", "H3")
def trees(case: Case) -> None:
    structures: list[Any] = []

    def keep(operand: Any) -> Any:
        structures.append(jax.tree.structure(operand))
        return jax.tree.map(np.array, operand)

    for tree in TREES:
        host = case.host(keep)
        with case.part(str(jax.tree.structure(tree))):
            for result in case.runs(lambda x, host=host: case.apply(host, x), tree, times=1):
                case.gave(result, tree)
                case.saw(host, [tree])
                found = {structures[-1], jax.tree.structure(result)} if structures else set()
                case.same("wrong operand", Stage.CALLBACK, found, {jax.tree.structure(tree)}, "the structures")


@case("jit", BATCHED, "H1 H3 X2 X3 X4")
def typed_keys(case: Case) -> None:
    """An argument of the program, in a tree, in a vmap's batch, and in a loop's carry."""
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
        return jax.lax.scan(lambda carry, _: (jax.random.fold_in(carry, 1), apply(carry)), key, None, length=TRIPS)[1]

    key, keys = jax.random.key(7), jax.random.split(jax.random.key(8), TRIPS)
    chain = [key]
    for _ in range(TRIPS - 1):
        chain.append(jax.random.fold_in(chain[-1], 1))
    programs: dict[str, tuple[Callable[[Any], Any], Any, Iterable[Any]]] = {
        "as an argument": (apply, key, [key]),
        "several in an array": (apply, keys, keys),
        "in a tree": (lambda key: apply({"number": np.float32(2), "key": (key, key)}), key, [key, key]),
        "in the carry of a scan": (looped, key, chain),
        "made by the program": (lambda seed: apply(jax.random.key(seed)), np.uint32(7), [key]),
    }
    if case.callback.batching is not Batching.REFUSED:
        programs["in a batch"] = (jax.vmap(apply), keys, keys)
    # A pure callback may run once more.
    counted: Any = list if case.callback.runs is Runs.ONCE else set
    for label, (function, argument, expected) in programs.items():
        seen.clear()
        with case.part(f"a key {label}"):
            results = np.asarray(jax.jit(function)(argument))
            case.barrier()
            words = sorted(counted(tuple(words_of(each).tolist()) for each in expected))
            case.same("wrong operand", Stage.CALLBACK, sorted(counted(seen)), words)
            case.check(bool((results == 1).all()), "result", Stage.RESULT, f"the results are {results}")


def words_of(leaf: Any) -> Any:
    """The words of a key; an implementation may pass the key itself or these words."""
    typed = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed else leaf)
