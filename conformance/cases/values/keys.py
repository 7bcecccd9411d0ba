"""Typed keys of JAX, which callbacks receive as their words."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case

WITHOUT_VALUE = np.zeros(2, jax.dtypes.float0)


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
