"""Fault cells of calls that fail or return a wrong result: the text of the error, and the report of the barrier."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import JaxRuntimeError
from .harness.bench import Bench
from .harness.checks import ERROR_MARK, PLANTED, check_failed_barrier, check_quiet_barrier, check_value, error_of
from .harness.registry import COLLECTIVE_TIMEOUT_FLAGS, EVERY_LAYOUT, Scenario, planted


class _Misbehaving:
    """A host function that returns a wrong result while it is armed."""

    __name__ = "misbehaving"

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.armed = True

    def __call__(self, operand: Any) -> Any:
        if not self.armed:
            return operand + np.float32(1)
        if self.kind == "raises":
            raise ValueError(PLANTED)
        return {
            "wrong_shape": np.zeros((*operand.shape, 2), np.float32),
            "wrong_dtype": np.zeros(operand.shape, np.int32),
            "wrong_tree": (operand, operand),
            "none": None,
            "error_mark": ERROR_MARK,
        }[self.kind]


def _array_type(dtype: str, shape: tuple[int, ...]) -> str:
    """A pattern for the usual ways to write an array type: float32[3,2], f32[3, 2], ..."""
    short = dtype.replace("float", "f").replace("int", "[is]")
    return rf"({dtype}|{short})\[{', ?'.join(str(size) for size in shape)}\]"


def _broken(kind: str) -> Scenario:
    return lambda bench, callback: _broken_call(bench, kind)


def _broken_call(bench: Bench, kind: str) -> list[Anomaly]:
    misbehaving = _Misbehaving(kind)

    def named_callback(operand: Any) -> Any:
        return misbehaving(operand)

    compiled = bench.calling(named_callback)
    anomalies = _check_error(bench, kind, error_of(lambda: compiled(bench.operand)))
    anomalies += check_failed_barrier(bench, PLANTED if kind == "raises" else "named_callback")

    # The failure is over: it must not affect the same computation again, nor another one.
    misbehaving.armed = False
    other = bench.calling(lambda operand: operand * np.float32(2))
    for label, computation, wanted in (
        ("the same computation", compiled, bench.operand + 1),
        ("another computation", other, bench.operand * 2),
        ("the same computation again", compiled, bench.operand + 1),
    ):
        anomalies += check_value(label, lambda c=computation: c(bench.operand), wanted)  # type: ignore[misc]
    return anomalies + check_quiet_barrier(bench, "after clean computations")


def _check_error(bench: Bench, kind: str, error: Exception | None) -> list[Anomaly]:
    if error is None:
        witness = f"the call went wrong ({kind}) and the computation delivered a result"
        return [Anomaly("swallowed error", Stage.RESULT, witness)]
    if not isinstance(error, JaxRuntimeError):
        return [Anomaly("wrong error", Stage.DISPATCH, f"not a JaxRuntimeError: {summary(error)}")]
    shape = bench.callback_shape
    wanted = {
        "the callback": "named_callback",
        "the expected type": _array_type("float32", shape),
        "what came": {
            "raises": PLANTED,
            "wrong_shape": _array_type("float32", (*shape, 2)),
            "wrong_dtype": _array_type("int32", shape),
            "wrong_tree": r"tuple|PyTreeDef\(\(\*, \*\)\)|\(\*, \*\)|\(float32|\(f32",
            "none": "None",
            "error_mark": r"int8\[12345\]",
        }[kind],
    }
    if bench.layout == "pjit" and len(bench.devices) > 1:
        wanted["the mark that crossed in place of the result"] = r"int8\[12345\]"
    return [
        Anomaly("poor error", Stage.DISPATCH, f"the error does not name {what}: {summary(error)}")
        for what, pattern in wanted.items()
        if not re.search(pattern, str(error))
    ]


for _kind in ("raises", "wrong_shape", "wrong_dtype", "wrong_tree", "none", "error_mark"):
    planted(EVERY_LAYOUT, "call", kind=_kind)(_broken(_kind))


@planted("pmap", "call", xla_flags=COLLECTIVE_TIMEOUT_FLAGS, minimum_devices=2, isolated=True)
def raises_before_collective(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One device fails while its peers wait for it in a collective."""

    def host(operand: Any) -> Any:
        if operand[0] == bench.operand[1][0]:
            raise ValueError(PLANTED)
        return operand

    def computation(x: Any) -> Any:
        wanted = jax.ShapeDtypeStruct(jnp.shape(x), np.float32)
        return jax.lax.psum(bench.implementation.call(host, x, wanted), "devices")

    compiled = bench.compile(computation)
    error = error_of(lambda: compiled(bench.operand))
    if error is None:
        return [Anomaly("swallowed error", Stage.RESULT, "the sum of a failed call was delivered")]
    return check_failed_barrier(bench, PLANTED)
