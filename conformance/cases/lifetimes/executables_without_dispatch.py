"""Cases of executables of the runtime, which a user takes out of a program and runs without JAX's dispatch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..harness.case import Case, case
from ..harness.hosts import add_one

ROUNDS = 2


@case("jit pjit", "pure_callback", "H10 X2")
def runs_without_dispatch(case: Case) -> None:
    """The runtime's executable of a program calls back, although JAX reports none of its runs."""
    split = case.split if case.layout == "pjit" else jax.sharding.SingleDeviceSharding(case.devices[0])
    executable = case.program(add_one).lower(case.operand).compile().runtime_executable()
    operand = jax.device_put(case.operand, split)

    def run() -> Any:
        (parts,) = executable.execute_sharded([operand]).disassemble_into_single_device_arrays()
        return np.concatenate([np.asarray(part) for part in parts])

    for _ in range(ROUNDS):
        case.gives(case.expected, run, what="the executable")
    case.barrier()
