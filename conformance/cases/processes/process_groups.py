"""Cases over several processes: a callback or a process fails, and the other processes hear of it in time."""

from __future__ import annotations

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

from ...oracle.stages import summary
from ...oracle.verdicts import Stage
from ...spec.jax_versions import JaxRuntimeError
from ..failures.misbehaving import Misbehaving
from ..harness.case import Case, case
from ..harness.hosts import PLANTED, add_one, fail
from ..harness.registry import COLLECTIVE_TIMEOUT_FLAGS

BOUNDED = 30.0
"""Seconds in which a process must hear that another one failed, with the time that JAX takes to notice."""

AT_ONCE = 5.0
"""Seconds in which it must receive a failure that the library itself reports."""

PATIENCE_MILLISECONDS = 10_000

_numbers = itertools.count()

TIMEOUT_FLAGS = (*COLLECTIVE_TIMEOUT_FLAGS, "--xla_cpu_collective_timeout_seconds=3")
"""XLA's own timeouts of collectives are minutes long."""


def _operand(case: Case) -> jax.Array:
    """The operand of a case, as an array of which each process has its own part."""
    return jax.make_array_from_callback(case.operand.shape, case.split, lambda place: case.operand[place])


def _check_result(case: Case, run: Callable[[], Any], expected: Any) -> bool:
    """Whether every part of a result that this process has is right."""
    found = len(case.anomalies)
    try:
        shards = run().addressable_shards
    except Exception as error:
        case.wrong("stale error", Stage.DISPATCH, f"the program failed: {summary(error)}")
        return False
    for shard in shards:
        case.gives(expected[shard.index], np.asarray, shard.data)
    return len(case.anomalies) == found


def _check_fails(case: Case, run: Callable[[], Any], limit: float) -> Exception | None:
    """The program fails in this process within so many seconds; return its error."""
    started = time.monotonic()
    error = case.raises(lambda: [np.asarray(shard.data) for shard in run().addressable_shards])
    seconds = time.monotonic() - started
    case.check(seconds <= limit, "late error", Stage.RESULT, f"the program failed after {seconds:.0f} s")
    return error


@case(
    *("pjit", "call pure_callback", "H15 H23"),
    processes=True,
    deadline=7.0,
    exclusive="it measures the seconds until each process hears of the failure, and its deadline is hardly longer",
)
def raises_in_one_process(case: Case) -> None:
    """Under jit over a mesh one process calls back. If that raises, the program ends with an error in each process."""
    host = Misbehaving(armed=True)
    program, operand = case.program(host), _operand(case)
    error = _check_fails(case, lambda: program(operand), AT_ONCE)
    if jax.process_index() == 0:
        case.check(PLANTED in str(error), "poor error", Stage.DISPATCH, f"the error does not say why: {error}")
    case.drain()
    host.armed = False
    _check_result(case, lambda: program(operand), case.operand + np.float32(1))


@case("jit shard_map", "id_tap", "H13 H14 H23", processes=True)
def barrier_of_each_process(case: Case) -> None:
    """A barrier waits for the callbacks of its own process and reports their failures alone.

    The second process is slow, and then it fails.
    """
    slow = jax.process_index() == 1
    number = next(_numbers)
    # A key can be set once, so each process that is not slow has its own.
    keys = [f"conformance/barrier/{number}/{process}" for process in range(jax.process_count())]
    ended: list[bool] = []

    def host(operand: Any) -> None:
        ended.append(not slow or all(_has_arrived(key) for key in keys if key != keys[1]))

    result = case.program(host)(case.operand)
    case.implementation.barrier()
    if not slow:
        _client().key_value_set(keys[jax.process_index()], "returned")
    in_time, own = [*ended], 1 if case.layout == "jit" else len(jax.local_devices())
    _check_result(case, lambda: result, case.operand)
    case.same("early barrier", Stage.BARRIER, len(in_time), own, "this process's callbacks that had ended")
    case.check(all(in_time), "late barrier", Stage.BARRIER, "the barrier of another process waited for this one")
    failing = case.program(fail if slow else lambda operand: None)
    _check_result(case, lambda: failing(case.operand), case.operand)
    if slow:
        case.barrier_reports()


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


def _before_a_sum(case: Case, in_second: Callable[[], Any]) -> None:
    """The second process does this in a callback, before a sum over all devices; the other one must hear of it."""
    # A barrier would wait for a process that is gone.
    case.ends_quietly = failing = False

    def host(operand: Any) -> Any:
        if failing and jax.process_index() == 1:
            in_second()
        return add_one(operand)

    program = case.compile(lambda x: jax.lax.psum(case.apply(host, x), "devices"))
    total = np.broadcast_to(case.expected.sum(axis=0), case.operand.shape)
    # The first collective of these devices connects them, for which XLA has another and longer timeout.
    if _check_result(case, lambda: program(case.operand), total):
        failing = True
        _check_fails(case, lambda: program(case.operand), BOUNDED)


ENDED: dict[str, Any] = {"processes": True, "isolated": True, "deadline": 45.0, "xla_flags": TIMEOUT_FLAGS}


@case("shard_map", "io_callback", "H15 H23", **ENDED)
def raises_before_sum(case: Case) -> None:
    """A callback raises in one process before a collective: an error in all, at the latest after XLA's own timeout."""
    _before_a_sum(case, fail)


@case("shard_map", "io_callback", "H23", **ENDED, ends=(1,))
def killed_before_sum(case: Case) -> None:
    """A process is killed while the other one waits for it in a collective: the other's program fails in time."""
    _before_a_sum(case, lambda: os.kill(os.getpid(), signal.SIGKILL))


@case("shard_map", "call io_callback", "H23", **ENDED, ends=(1,))
def stopped_before_sum(case: Case) -> None:
    """A process is stopped, not ended, while the other one waits for it in a collective: the other's fails in time."""

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        # The main thread takes the signal, on a busy machine later than this thread would go on.
        threading.Event().wait()

    _before_a_sum(case, stop)


@case("pjit", "call pure_callback", "H23", **ENDED, ends=(0,))
def killed_in_call(case: Case) -> None:
    """The process that calls back for a whole mesh, JAX's coordinator, is killed: the other's program fails in time."""

    def host(operand: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return operand

    case.ends_quietly = False
    program = case.program(host)
    _check_fails(case, lambda: program(_operand(case)), BOUNDED)
