"""H15, H32: a callback that fails in a callback in a callback: each text grows by the same amount for each level."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from support.first_lines import barrier
from support.pairwise import pairwise

import hostcb as hcb

pytestmark = pytest.mark.contract("H13", "H15", "H32")

F32 = jax.ShapeDtypeStruct((), np.float32)
RAISES = 'raise ValueError("innermost")'


def filling(host: Callable[[Any], Any]) -> Callable[..., None]:
    def fill(context: Any, out: Any, value: Any) -> None:
        np.asarray(out)[...] = host(np.asarray(value))

    return fill


def debugging(host: Callable[[Any], Any], x: Any) -> Any:
    hcb.debug.callback(lambda value: (host(value), None)[1], x)
    return x


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda host, x: hcb.call(host, x, result_shape=F32),
    "pure_callback": lambda host, x: hcb.pure_callback(host, F32, x),
    "io_callback": lambda host, x: hcb.io_callback(host, F32, x, ordered=True),
    "buffer_callback": lambda host, x: hcb.buffer_callback(filling(host), F32)(x),
    "debug.callback": debugging,
}


def nested(depth: int, call: Callable[[Any, Any], Any], stage: Any, wrapped: bool) -> Callable[[Any], Any]:
    """A program whose callback runs a program, and so on; the callback of the innermost one fails."""
    inner = nested(depth - 1, call, stage, wrapped) if depth else None

    def host(value: Any) -> Any:
        if inner is None:
            raise ValueError("innermost")
        try:
            return np.asarray(jax.block_until_ready(inner(value)))
        except jax.errors.JaxRuntimeError as error:
            if wrapped:
                raise RuntimeError("a level failed") from error
            raise

    staged: Callable[[Any], Any] = stage(lambda x: call(host, x))
    return staged


@pairwise(kind=KINDS, stage=("jit", "eager"), error=("as it is", "wrapped"))
def test_texts_grow_with_the_depth(kind: str, stage: str, error: str) -> None:
    sizes = []
    staging, wrapped = jax.jit if stage == "jit" else lambda function: function, error == "wrapped"
    for depth in (3, 6, 9):
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.block_until_ready(nested(depth, KINDS[kind], staging, wrapped)(np.float32(1)))
            jax.effects_barrier()
        raised, reported = caught.value, barrier()
        texts = {
            "error": str(raised),
            "as Python prints it": "".join(traceback.format_exception(raised)),
            "failure": reported.failures[-1].text,
            "barrier": str(reported),
        }
        assert all("ValueError: innermost" in texts[where] for where in ("error", "barrier"))
        assert all(RAISES in texts[where] for where in ("as Python prints it", "failure"))
        sizes.append({where: len(text) for where, text in texts.items()})
    few, more, most = sizes
    for where, size in most.items():
        assert size - more[where] < 1.2 * (more[where] - few[where]) + 400, f"{where}: {few}, {more}, {most}"
