"""Fault cells of the types of 64 bits, which JAX has with `jax_enable_x64`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import planted

WIDE: dict[str, complex] = {
    "int64": -(2**62) - 1,
    "uint64": 2**63 + 1,
    "float64": 1 + 2**-40,
    "complex128": complex(1 + 2**-40, -2 - 2**-39),
}
"""A number of each type that no type of 32 bits, or of 32 bits for each part, has."""


def _with_x64() -> AbstractContextManager[Any]:
    """The public name of the setting's context is another one in older releases."""
    enable: Any = getattr(jax if hasattr(jax, "enable_x64") else jax.experimental, "enable_x64")  # noqa: B009
    context: AbstractContextManager[Any] = enable(True)
    return context


# In jit over a mesh JAX's own callbacks would hang: docs/jax-bugs/x64-of-one-thread.md.
@planted("pjit", "call", "H3 H10")
# JAX's own callbacks fail here, and JAX raises their failures again at later barriers: in a process of their own.
@planted("shard_map pmap", "call pure_callback io_callback", "H3 H10 X2 X3", isolated=True)
@planted("jit", "call pure_callback io_callback", "H3 H10 X2 X3")
def all_64_bits(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Numbers of 64 bits come from one callback and reach the next, on one device and over a mesh, with all bits."""
    anomalies = []
    with _with_x64():
        for name, number in WIDE.items():
            seen: list[Any] = []
            of_one = np.full(bench.callback_shape, number, np.dtype(name))

            def make(operand: Any, of_one: Any = of_one) -> Any:
                return of_one

            def keep(operand: Any, seen: list[Any] = seen) -> Any:
                seen.append(np.array(operand))
                return np.asarray(operand)

            result: Any = bench.operand
            for host in (make, keep):

                def compute(x: Any, host: Any = host, of_one: Any = of_one) -> Any:
                    return bench.apply(callback, host, x, jax.ShapeDtypeStruct(x.shape, of_one.dtype))

                result = bench.compile(compute)(result)
            bench.implementation.barrier()
            whole = np.full(bench.operand.shape, number, of_one.dtype)
            for what, wanted, found in (
                ("the operands of the callback", of_one, seen),
                ("the result", whole, [np.asarray(result)]),
            ):
                right = [each.dtype == wanted.dtype and np.array_equal(each, wanted) for each in found]
                if not (right and all(right)):
                    witness = f"{what} of type {name} should be {number}: {[each.ravel()[:2] for each in found]}"
                    anomalies.append(Anomaly("wrong result", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after numbers of 64 bits")
