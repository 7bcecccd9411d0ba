"""Cases of batches without an element: no element calls, and the result has the right type and no element."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Batching, Runs
from ..harness.case import Case, case
from ..harness.programs import WIDTH

BY_METHOD = (
    "call_sequential call_sequential_unrolled call_expand_dims call_broadcast_all io_callback"
    " pure_callback_sequential pure_callback_expand_dims pure_callback_broadcast_all"
)


@case("jit", f"id_tap {BY_METHOD}", "H7 H8 X2 X3")
def empty_batches(case: Case) -> None:
    """Over an axis of no elements, outside jit and in it; a callback of whole batches gets one without elements."""
    host = case.host()

    def batch(x: Any) -> Any:
        like = jax.ShapeDtypeStruct((WIDTH,), x.dtype)
        return jax.vmap(lambda each: case.apply(host, each, like))(x)

    whole = case.callback.batching in (Batching.STACKED, Batching.EXPAND_DIMS, Batching.BROADCAST_ALL)
    wanted = [(0, WIDTH)] if whole else []
    floats, integers = np.zeros((0, WIDTH), np.float32), np.zeros((0, WIDTH), np.int16)
    for label, program, empty in (
        ("outside jit", batch, floats),
        ("in jit", jax.jit(batch), floats),
        ("in jit, of integers,", jax.jit(batch), integers),
    ):
        case.forget()
        case.gives(empty, program, jnp.asarray(empty), what=label)
        case.barrier()
        # The compiler knows a pure function's result without elements.
        if host.count or case.callback.runs is Runs.ONCE:
            shapes = [event.leaves[0].shape for event in case.events]
            case.same("wrong count", Stage.CALLBACK, shapes, wanted, label)
