"""Ordered callbacks in programs with a memory kind in their signature.

JAX makes a list with the memory kind of each result. The tokens come before the results, and have no entry in it. This
repairs JAX's own ordered callbacks as well.

- docs/jax-bugs/ordered-memory-kind.md: JAX >=0.7.1
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.experimental
import numpy as np

from .. import _compat

logger = logging.getLogger("hostcb")


def work_around() -> None:
    """Lower programs that have both memory kinds and tokens."""
    plain = _compat.lower_function()
    if plain is None:
        return

    def lower(ctx: Any, name: Any, jaxpr: Any, effects: Sequence[Any], *others: Any, **params: Any) -> Any:
        kinds = params.get("propagated_out_mem_kinds")
        needed = bool(effects) and params.get("result_memory_kinds") is not None
        if needed and kinds is not None and not _asking.get() and _tokens_are_forgotten():
            # One entry for each token, as JAX's function itself adds to its other lists.
            params["propagated_out_mem_kinds"] = (*[None] * len(effects), *kinds)
        return plain(ctx, name, jaxpr, effects, *others, **params)

    _compat.replace_lower_function(lower)


# Set while hostcb tests whether JAX has the bug; the workaround must be off then.
_asking: contextvars.ContextVar[bool] = contextvars.ContextVar("hostcb_asking_for_token_bug", default=False)


@functools.cache
def _tokens_are_forgotten() -> bool:
    """Whether this JAX has the bug. The first program that needs the answer runs the test, on a minimal program."""
    device = jax.local_devices()[0]
    usual = device.default_memory().kind
    unusual = next((memory.kind for memory in device.addressable_memories() if memory.kind != usual), usual)
    sharding = jax.sharding.SingleDeviceSharding(device, memory_kind=unusual)
    reset = _asking.set(True)
    try:
        with _compat.without_mesh():
            jax.jit(_ordered_identity, out_shardings=sharding).lower(np.zeros((), np.int8))
    except ValueError as error:
        logger.debug("this JAX forgets the tokens of programs with memory kinds: %s", error)
        return True
    finally:
        _asking.reset(reset)
    return False


def _ordered_identity(x: Any) -> Any:
    # JAX's own, also while hostcb is installed: see `own_callbacks`.
    jax.experimental.io_callback(lambda: None, None, ordered=True)
    return x
