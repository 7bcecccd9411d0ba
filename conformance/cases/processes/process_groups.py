"""Cases over several processes: a callback or a process fails, and the other processes hear of it in time."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import distributed

from ...oracle.checkers import Anomaly
from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Callback
from ...spec.jax_versions import JaxRuntimeError
from ..harness.bench import Bench
from ..harness.checks import PLANTED, check_failed_barrier, check_quiet_barrier
from ..harness.registry import COLLECTIVE_TIMEOUT_FLAGS, bench_case

BOUNDED = 30.0
"""Seconds in which a process must hear that another one failed, with the time that JAX takes to notice."""

AT_ONCE = 10.0
"""Seconds in which it must receive a failure that the library itself reports."""

PATIENCE_MILLISECONDS = 10_000

_numbers = itertools.count()

TIMEOUT_FLAGS = (*COLLECTIVE_TIMEOUT_FLAGS, "--xla_cpu_collective_timeout_seconds=3")
"""XLA's own timeouts of collectives are minutes long."""


def _operand(bench: Bench) -> jax.Array:
    """The operand of a bench, as an array of which each process has its own part."""
    return jax.make_array_from_callback(bench.operand.shape, bench.split, lambda place: bench.operand[place])


def _own_parts(result: Any) -> list[Any]:
    """The parts of a result that this process has, as (place, value)."""
    return [(shard.index, np.asarray(shard.data)) for shard in result.addressable_shards]


def _error_in(run: Callable[[], Any]) -> tuple[Exception | None, float]:
    """The exception of a program, and its seconds."""
    started = time.monotonic()
    try:
        for _, part in _own_parts(run()):
            del part
    except Exception as error:
        return error, time.monotonic() - started
    return None, time.monotonic() - started


def _check_result(label: str, run: Callable[[], Any], wanted: Any) -> list[Anomaly]:
    """Every part of a result that this process has is right."""
    try:
        parts = _own_parts(run())
    except Exception as error:
        return [Anomaly("stale error", Stage.DISPATCH, f"{label} failed: {summary(error)}")]
    return [
        Anomaly("result", Stage.RESULT, f"{label} gave {value.tolist()}, expected {wanted[place].tolist()}")
        for place, value in parts
        if not np.array_equal(value, wanted[place])
    ]


def _check_error(error: Exception | None, seconds: float, limit: float) -> list[Anomaly]:
    if error is None:
        return [Anomaly("swallowed error", Stage.RESULT, "the program raised nothing")]
    if seconds > limit:
        return [Anomaly("late error", Stage.RESULT, f"the program failed after {seconds:.0f} s: {summary(error)}")]
    return []


@bench_case(
    *("pjit", "call pure_callback", "H15 H23"),
    processes=True,
    deadline=12.0,
    exclusive="it measures the seconds until each process hears of the failure, and its deadline is hardly longer",
)
def raises_in_one_process(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Under jit over a mesh one process calls back. If that raises, the program ends with an error in each process."""
    failing = True

    def host(operand: Any) -> Any:
        if failing:
            raise RuntimeError(PLANTED)
        return np.asarray(operand) + np.float32(1)

    compiled, operand = bench.applying(callback, host), _operand(bench)
    error, seconds = _error_in(lambda: compiled(operand))
    anomalies = _check_error(error, seconds, AT_ONCE)
    if error and jax.process_index() == 0 and PLANTED not in str(error):
        witness = f"the error does not mention {PLANTED!r}: {summary(error)}"
        anomalies.append(Anomaly("poor error", Stage.DISPATCH, witness))
    with contextlib.suppress(bench.implementation.callback_exception):
        bench.implementation.barrier()
    failing = False
    anomalies += _check_result("the program afterwards", lambda: compiled(operand), bench.operand + np.float32(1))
    return anomalies + check_quiet_barrier(bench, "after a failure that it has reported")


@bench_case("jit shard_map", "id_tap", "H14 H23", processes=True)
def tap_raises_in_one_process(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A tap that raises in the second process is reported by that process's barrier, and by no other one."""
    raising = jax.process_index() == 1

    def host(operand: Any) -> None:
        if raising:
            raise RuntimeError(PLANTED)

    compiled = bench.applying(callback, host)
    anomalies = _check_result("the program", lambda: compiled(bench.operand), bench.operand)
    check = check_failed_barrier(bench, PLANTED) if raising else check_quiet_barrier(bench, "in another process")
    return anomalies + check


@bench_case("jit shard_map", "id_tap", "H13 H23", processes=True)
def barrier_of_each_process(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A barrier waits for the callbacks of its own process, and for no other: the second process is slow."""
    slow = jax.process_index() == 1
    number = next(_numbers)
    # A key can be set once, so each process that is not slow has its own.
    keys = [f"conformance/barrier/{number}/{process}" for process in range(jax.process_count())]
    ended: list[bool] = []

    def host(operand: Any) -> None:
        ended.append(not slow or all(_has_arrived(key) for key in keys if key != keys[1]))

    compiled = bench.applying(callback, host)
    result = compiled(bench.operand)
    bench.implementation.barrier()
    if not slow:
        _client().key_value_set(keys[jax.process_index()], "returned")
    own = 1 if bench.layout == "jit" else len(jax.local_devices())
    anomalies = _check_result("the program", lambda: result, bench.operand)
    if len(ended) != own:
        witness = f"the barrier returned after {len(ended)} of this process's {own} callbacks"
        anomalies.append(Anomaly("early barrier", Stage.BARRIER, witness))
    elif not all(ended):
        witness = "the barrier of another process waited for the callbacks of this one"
        anomalies.append(Anomaly("late barrier", Stage.BARRIER, witness))
    return anomalies


def _client() -> Any:
    """How the processes of a job talk to each other, whatever their programs do."""
    return distributed.global_state.client


def _has_arrived(key: str) -> bool:
    """Whether another process has said this, now or soon."""
    try:
        _client().blocking_key_value_get(key, PATIENCE_MILLISECONDS)
    except JaxRuntimeError:
        return False
    return True


def _before_a_sum(bench: Bench, callback: Callback, in_second: Callable[[], None]) -> list[Anomaly]:
    """The second process does this in a callback, before a sum over all devices; the other one must hear of it."""
    failing = False

    def host(operand: Any) -> Any:
        if failing and jax.process_index() == 1:
            in_second()
        return np.asarray(operand) + np.float32(1)

    compiled = bench.compile(lambda x: jax.lax.psum(bench.apply(callback, host, x), "devices"))
    # The first collective of these devices connects them, for which XLA has another and longer timeout.
    if anomalies := _check_result("the program", lambda: compiled(bench.operand), _summed(bench, callback)):
        return anomalies
    failing = True
    return _check_error(*_error_in(lambda: compiled(bench.operand)), BOUNDED)


def _summed(bench: Bench, callback: Callback) -> Any:
    """What every device has after the sum."""
    total = bench.expected(callback, bench.operand).sum(axis=0)
    return np.broadcast_to(total, bench.operand.shape)


@bench_case(
    "shard_map", "io_callback", "H15 H23", processes=True, isolated=True, deadline=45.0, xla_flags=TIMEOUT_FLAGS
)
def raises_before_sum(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback raises in one process before a collective: an error in all, at the latest after XLA's own timeout."""

    def fail() -> None:
        raise RuntimeError(PLANTED)

    return _before_a_sum(bench, callback, fail)


@bench_case(
    *("shard_map", "io_callback", "H23"),
    processes=True,
    isolated=True,
    deadline=45.0,
    xla_flags=TIMEOUT_FLAGS,
    ends=(1,),
)
def killed_before_sum(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A process is killed while the other one waits for it in a collective."""
    return _before_a_sum(bench, callback, lambda: os.kill(os.getpid(), signal.SIGKILL))


@bench_case(
    "shard_map", "call", "H23", processes=True, isolated=True, deadline=45.0, xla_flags=TIMEOUT_FLAGS, ends=(1,)
)
def stopped_before_sum(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A process is stopped, and not ended, while the other one waits for it in a collective."""

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        # The main thread takes the signal, on a busy machine later than this thread would go on.
        threading.Event().wait()

    return _before_a_sum(bench, callback, stop)


@bench_case("pjit", "call", "H23", processes=True, isolated=True, deadline=45.0, xla_flags=TIMEOUT_FLAGS, ends=(0,))
def killed_in_call(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The process that calls back for a whole mesh is killed in the callback: it also is JAX's coordinator."""

    def host(operand: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return operand

    compiled = bench.applying(callback, host)
    return _check_error(*_error_in(lambda: compiled(_operand(bench))), BOUNDED)
