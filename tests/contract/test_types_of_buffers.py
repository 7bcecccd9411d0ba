"""The arguments of buffer callbacks have public types, for annotations (B6)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from support.helpers import STAGES

import hostcb as hcb


@pytest.mark.contract("B6")
@STAGES
def test_the_arguments_of_buffer_callbacks_have_public_types(stage: Any) -> None:
    from jax.experimental import buffer_callback

    seen: list[bool] = []

    def double(ctx: hcb.ExecutionContext, out: hcb.Buffer, x: hcb.Buffer) -> None:
        seen.append(isinstance(ctx, hcb.ExecutionContext) and isinstance(out, hcb.Buffer) and isinstance(x, hcb.Buffer))
        seen.append(ctx.stage is hcb.ExecutionStage.EXECUTE)
        np.multiply(np.asarray(x), 2, out=np.asarray(out))

    assert float(stage(hcb.buffer_callback(double, jax.ShapeDtypeStruct((), np.float32)))(np.float32(1))) == 2
    assert seen == [True, True]
    for name in ("Buffer", "ExecutionContext", "ExecutionStage"):
        assert getattr(hcb, name) is getattr(buffer_callback, name)
