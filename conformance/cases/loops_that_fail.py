"""Fault cells of failures in loops whose number of steps depends on what callbacks return."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import JaxRuntimeError
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import planted

STEPS = 5
ROUNDS = 2


@planted("jit", "call pure_callback buffer_callback dlpack_callback")
def fails_in_a_while_loop(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A loop that goes on until a callback's result is large enough ends when that callback fails."""
    fails = False

    def host(operand: Any) -> Any:
        if fails and float(np.asarray(operand)) > STEPS // 2:
            raise ValueError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    def computation(x: Any) -> Any:
        result = jax.lax.while_loop(lambda carry: carry < STEPS, lambda carry: bench.apply(callback, host, carry), x)
        # What comes last does not say of which callbacks the program is made.
        return bench.implementation.tap(lambda *_: None, result) if callback.function == "call" else result

    program = jax.jit(computation)
    anomalies: list[Anomaly] = []
    wanted = np.float32(STEPS)
    # JAX dispatches a program in another way from its second run on.
    for _ in range(ROUNDS):
        anomalies += check_value("the loop", lambda: program(np.float32(0)), wanted)
        anomalies += check_quiet_barrier(bench, "after the loop")
        fails = True
        error = error_of(lambda: program(np.float32(0)))
        fails = False
        if error is None or PLANTED not in str(error):
            witness = f"a loop whose callback failed ended with {error or 'a result'!r}"
            anomalies.append(Anomaly("swallowed error", Stage.RESULT, witness))
        elif not isinstance(error, JaxRuntimeError):
            witness = f"a loop whose callback failed raised no JaxRuntimeError but {summary(error)}"
            anomalies.append(Anomaly("wrong error", Stage.DISPATCH, witness))
        # This barrier may report the failure as well.
        error_of(bench.implementation.barrier)
    return anomalies + check_value("the loop afterwards", lambda: program(np.float32(0)), wanted)
