"""Cases of what is lowered for GPUs alone: any machine can lower a program for them, and read it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case

TARGETS = {False: "xla_buffer_python_gpu_callback", True: "xla_buffer_python_gpu_callback_cmd_buffer"}
"""The target that XLA calls each time, and the one that it calls once to record what is enqueued."""


@case("jit", "buffer_callback dlpack_callback", "B5")
def command_buffers(case: Case) -> None:
    """B5: on GPUs `command_buffer_compatible` takes the target that XLA records, and without it XLA records none."""

    def nothing(*_: Any) -> None:
        """It is not called."""

    operand = jax.ShapeDtypeStruct((3,), np.float32)
    for compatible, target in TARGETS.items():
        function = getattr(case.library, case.callback.function)(nothing, operand, command_buffer_compatible=compatible)
        text = jax.jit(function).trace(operand).lower(lowering_platforms=("cuda",)).as_text()
        witness = f"with command_buffer_compatible={compatible} no operation has the target {target}"
        case.check(f"@{target}(" in text, "target", Stage.LOWER, witness)
