"""Run fault cells: plant a misbehaving callback and see what it costs its surroundings.

Each scenario returns anomalies. What may crash, hang or poison its process runs in one of its own, where that is a
result like any other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.bench import Bench
from conformance.checkers import Anomaly
from conformance.data_faults import DATA_SCENARIOS
from conformance.execution import summary
from conformance.external_faults import run_external_fault
from conformance.fault_catalogue import BROKEN_RESULTS, RUNTIME_TARGETS, Fault
from conformance.fault_checks import ERROR_MARK, PLANTED, check_quiet_barrier, check_value, error_of
from conformance.implementations import Implementation
from conformance.jax_versions import JaxRuntimeError
from conformance.raw_faults import raw_result
from conformance.stages import stage_of
from conformance.tap_faults import TAP_SCENARIOS
from conformance.verdicts import Outcome, Stage, Verdict
from conformance.victims import VictimEndedError


def run_fault(fault: Fault, implementation: Implementation, devices: Sequence[jax.Device]) -> Outcome:
    bench = Bench(implementation, fault.layout, devices)
    started = time.perf_counter()
    try:
        anomalies = _anomalies(fault, bench)
    except VictimEndedError as error:
        return replace(error.outcome, seconds=time.perf_counter() - started)
    except Exception as error:
        if not _is_of_the_program(error, implementation):
            raise
        anomalies = [Anomaly("error", stage_of(error), f"the program failed: {summary(error)}")]
    seconds = time.perf_counter() - started
    if not anomalies:
        return Outcome(Verdict.PASS, seconds=seconds)
    witness = "; ".join(str(anomaly) for anomaly in anomalies)
    return Outcome(Verdict.FAIL, anomalies[0].stage, witness, seconds, anomaly=anomalies[0].kind)


def _anomalies(fault: Fault, bench: Bench) -> list[Anomaly]:
    if fault.callback in RUNTIME_TARGETS:
        return raw_result(fault.kind, fault.callback, bench)
    if fault.callback == "call" and fault.kind in BROKEN_RESULTS:
        return _broken_call(bench, fault.kind)
    if own := _SCENARIOS.get((fault.callback, fault.kind)):
        return own(bench)
    return run_external_fault(fault.kind, fault.callback, bench)


_SUITE = Path(__file__).parent
_IMPLEMENTATIONS = (_SUITE / "implementations", _SUITE / "mutants")


def _is_of_the_program(error: Exception, implementation: Implementation) -> bool:
    """Whether an exception tells of the implementation, and not of a mistake in the suite, which raises its own."""
    if isinstance(error, JaxRuntimeError | implementation.callback_exception):
        return True
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if any(raised_in.is_relative_to(folder) for folder in _IMPLEMENTATIONS):
        return True
    return not raised_in.is_relative_to(_SUITE)


class _Misbehaving:
    """A host function that returns the wrong thing while it is armed."""

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


def _broken_call(bench: Bench, kind: str) -> list[Anomaly]:
    misbehaving = _Misbehaving(kind)

    def named_callback(operand: Any) -> Any:
        return misbehaving(operand)

    compiled = bench.calling(named_callback)
    anomalies = _check_error(bench, kind, error_of(lambda: compiled(bench.operand)))
    anomalies += _check_barrier(bench, PLANTED if kind == "raises" else "named_callback")

    # The failure is over: neither the same computation nor another one may remember it.
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
        "int8[12345]": r"int8\[12345\]",
        "what came": {
            "raises": PLANTED,
            "wrong_shape": _array_type("float32", (*shape, 2)),
            "wrong_dtype": _array_type("int32", shape),
            "wrong_tree": r"tuple|PyTreeDef\(\(\*, \*\)\)|\(\*, \*\)|\(float32|\(f32",
            "none": "None",
            "error_mark": r"int8\[12345\]",
        }[kind],
    }
    return [
        Anomaly("poor error", Stage.DISPATCH, f"the error does not name {what}: {summary(error)}")
        for what, pattern in wanted.items()
        if not re.search(pattern, str(error))
    ]


def _check_barrier(bench: Bench, text: str) -> list[Anomaly]:
    """The next barrier reports the failure, and the one after it does not."""
    expected = bench.implementation.callback_exception.__name__
    try:
        bench.implementation.barrier()
    except bench.implementation.callback_exception as error:
        if text not in str(error):
            witness = f"the barrier's error does not mention {text!r}: {summary(error)}"
            return [Anomaly("poor error", Stage.BARRIER, witness)]
        return check_quiet_barrier(bench, "for a second time")
    except Exception as error:
        witness = f"the barrier must raise {expected}, raised {summary(error)}"
        return [Anomaly("wrong error", Stage.BARRIER, witness)]
    return [Anomaly("swallowed error", Stage.BARRIER, f"the barrier did not raise {expected}")]


def _legitimate_mark(bench: Bench) -> list[Anomaly]:
    """An int8[12345] that was asked for is a result like any other."""
    mark = (np.arange(12345) % 100).astype(np.int8)
    shape = {"shard_map": (1, 12345), "pjit": (len(bench.devices), 12345)}.get(bench.layout, (12345,))
    compiled = bench.calling(lambda _: np.broadcast_to(mark, shape), np.int8, shape)
    wanted = mark if bench.layout == "jit" else np.stack([mark] * len(bench.devices))
    anomalies = check_value("int8[12345]", lambda: compiled(bench.operand), wanted)
    return anomalies + check_quiet_barrier(bench, "after a legitimate int8[12345]")


def _raising_tap(bench: Bench) -> list[Anomaly]:
    return _failing_tap(bench, ValueError(PLANTED))


def _keyboard_interrupt(bench: Bench) -> list[Anomaly]:
    return _failing_tap(bench, KeyboardInterrupt(PLANTED))


def _failing_tap(bench: Bench, failure: BaseException) -> list[Anomaly]:
    later: list[float] = []

    def raising(operand: Any, transforms: Any) -> None:
        raise failure

    def recording(operand: Any, transforms: Any) -> None:
        later.append(float(operand.sum()))

    def computation(x: Any) -> Any:
        tapped = bench.implementation.tap(raising, x)
        return bench.implementation.tap(recording, tapped * 2.0)

    compiled = bench.compile(computation)
    wanted = bench.operand * 2
    anomalies = check_value("the tapped computation", lambda: compiled(bench.operand), wanted)
    anomalies += _check_barrier(bench, PLANTED)
    rows = wanted if bench.callbacks_per_run > 1 else [wanted]
    sums = sorted(float(row.sum()) for row in rows)
    if sorted(later) != sums:
        witness = f"after a tap had raised, later taps saw sums {sorted(later)}, expected {sums}"
        anomalies.append(Anomaly("lost", Stage.CALLBACK, witness))
    return anomalies


# Compiled once: a new jitted function per callback would compile in every callback, for longer
# than any deadline.
_host_side_jax = jax.jit(lambda v: jnp.tanh(v) @ jnp.tanh(v).T)

SIDE = 8


def _matrices(bench: Bench) -> Any:
    """One small matrix per device."""
    count = len(bench.devices)
    return np.arange(count * SIDE * SIDE, dtype=np.float32).reshape(count, SIDE, SIDE) / 100


def _first_matrices(bench: Bench) -> Any:
    """The first matrix that each callback sees: its own, or the first of all."""
    return _matrices(bench) if bench.layout == "pmap" else _matrices(bench)[:1]


def _call_runs_jax(bench: Bench) -> list[Anomaly]:
    def host(operand: Any) -> Any:
        return np.asarray(_host_side_jax(operand.reshape(-1, SIDE)[:SIDE])).reshape(SIDE, SIDE)

    def through(x: Any) -> Any:
        wanted = jax.ShapeDtypeStruct((SIDE, SIDE), np.float32)
        return x + bench.implementation.call(host, x, wanted)

    matrices = _matrices(bench)
    wanted = matrices + np.stack([host(first) for first in _first_matrices(bench)])
    value = np.asarray(bench.compile(through)(matrices))
    if not np.allclose(value, wanted, rtol=1e-5):
        return [Anomaly("result", Stage.RESULT, "JAX inside a call computed something else")]
    return check_quiet_barrier(bench, "after calls that ran JAX")


def _call_runs_jax_on_all(bench: Bench) -> list[Anomaly]:
    """A call that holds up a program on all devices runs another one on all of them."""
    doubled = jax.pmap(lambda v: v * 2, devices=bench.devices)
    doubled(bench.operand)

    def host(operand: Any) -> Any:
        return np.asarray(doubled(bench.operand))[0] * 0 + operand

    value = np.asarray(bench.calling(host, shape=bench.callback_shape)(bench.operand))
    if not np.array_equal(value, bench.operand):
        return [Anomaly("result", Stage.RESULT, "a call that ran JAX on all devices returned something else")]
    return []


def _call_starts_callbacks_on_all(bench: Bench) -> list[Anomaly]:
    """As above, with callbacks in the inner program: the implementation can know, and refuse."""
    inner = bench.compile(lambda v: bench.implementation.tap(lambda operand, transforms: None, v))
    inner(bench.operand)

    def host(operand: Any) -> Any:
        inner(bench.operand)
        return operand

    outer = bench.calling(host, shape=bench.callback_shape)
    error = error_of(lambda: outer(bench.operand))
    if error is None:
        return []
    if "several devices" not in str(error):
        return [Anomaly("error", Stage.RESULT, f"the refusal does not say why: {str(error)[-300:]}")]
    return _check_barrier(bench, "several devices")


def _tap_runs_jax(bench: Bench) -> list[Anomaly]:
    traces: list[float] = []

    def host(operand: Any, transforms: Any) -> None:
        traces.append(float(jnp.trace(_host_side_jax(operand.reshape(-1, SIDE)[:SIDE]))))

    def through(x: Any) -> Any:
        return bench.implementation.tap(host, x) * 2.0

    wanted = sorted(float(jnp.trace(_host_side_jax(m))) for m in _first_matrices(bench))
    np.asarray(bench.compile(through)(_matrices(bench)))
    anomalies = check_quiet_barrier(bench, "after taps that ran JAX")
    if len(traces) != len(wanted) or not np.allclose(sorted(traces), wanted, rtol=1e-5):
        witness = f"taps that ran JAX computed {sorted(traces)}, expected {wanted}"
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    return anomalies


def _raises_before_collective(bench: Bench) -> list[Anomaly]:
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
    return _check_barrier(bench, PLANTED)


_EXIT_PROGRAM = """
import os, sys, time
from conformance.implementations import load

implementation = load(sys.argv[1])
import jax, numpy as np

def host(operand, transforms):
    time.sleep(0.02)
    # One write per line: the devices' threads write at the same time.
    os.write(1, f"tapped {int(operand)}\\n".encode())

def computation(x):
    for step in range(5):
        x = implementation.tap(host, x + 10)
    return x

count = jax.local_device_count()
jax.pmap(computation)(np.arange(count, dtype=np.int32) * 100)
"""


def _pending_at_exit(bench: Bench) -> list[Anomaly]:
    """The interpreter ends right after dispatch; every tap must run before it does."""
    finished = subprocess.run(
        [sys.executable, "-c", _EXIT_PROGRAM, bench.implementation.name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    tapped = sorted(int(number) for number in re.findall(r"^tapped (\d+)$", finished.stdout, re.M))
    count = len(bench.devices)
    wanted = sorted(device * 100 + step * 10 for device in range(count) for step in range(1, 6))
    if finished.returncode != 0:
        witness = f"exit code {finished.returncode}: {finished.stderr.strip()[-300:]}"
        return [Anomaly("error", Stage.EXIT, witness)]
    if tapped != wanted:
        lost = sorted(set(wanted) - set(tapped))
        witness = f"{len(tapped)} of {len(wanted)} pending taps ran before exit; lost {lost[:5]}"
        return [Anomaly("lost", Stage.EXIT, witness)]
    return []


_SCENARIOS: dict[tuple[str, str], Callable[[Bench], list[Anomaly]]] = {
    ("call", "legitimate_mark"): _legitimate_mark,
    ("id_tap", "raises"): _raising_tap,
    ("id_tap", "keyboard_interrupt"): _keyboard_interrupt,
    ("id_tap", "runs_jax"): _tap_runs_jax,
    ("call", "runs_jax"): _call_runs_jax,
    ("call", "runs_jax_on_all"): _call_runs_jax_on_all,
    ("call", "starts_callbacks_on_all"): _call_starts_callbacks_on_all,
    ("id_tap", "pending_at_exit"): _pending_at_exit,
    ("call", "raises_before_collective"): _raises_before_collective,
    **TAP_SCENARIOS,
    **DATA_SCENARIOS,
}
