"""Fault cells of callbacks of any kind, the same for every implementation, and the list of all such scenarios.

How a failure becomes known is left to the implementation where the contract leaves it: the program
raises it, or the next barrier does. It must become known, with its text, and it must be over then.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np

from conformance.bench import WIDTH, Bench
from conformance.buffer_faults import fails_and_is_kept, keeps_its_view
from conformance.callbacks import Callback
from conformance.checkers import Anomaly
from conformance.compiler_faults import cond_without_results, equal_operands, loop_without_operands
from conformance.execution import summary
from conformance.external_callbacks import ALL_CALLBACKS
from conformance.fault_checks import ERROR_MARK, PLANTED, check_quiet_barrier, check_value, error_of
from conformance.jax_inside import runs_mesh, runs_on_one_device, runs_pmap, starts_others
from conformance.jax_versions import JaxRuntimeError
from conformance.process_faults import forks, os_exit, running_at_exit, shared_executables, signals
from conformance.report_faults import fails_before_calls, flags, several_fail, stops_and_starts
from conformance.reported_bugs import REPORTED
from conformance.thread_faults import blocks_until_released, full_queue, order_across_threads, two_threads
from conformance.verdicts import Stage

Scenario: TypeAlias = Callable[[Bench, Callback], list[Anomaly]]

CALLS = 10
_BY_NAME = {callback.name: callback for callback in ALL_CALLBACKS}


class _Faulty:
    """A host function that does what is planted while it is armed, and else adds one."""

    def __init__(self, fault: Callable[[Any], Any], armed: bool) -> None:
        self.fault = fault
        self.armed = armed

    def __call__(self, operand: Any) -> Any:
        return self.fault(operand) if self.armed else np.asarray(operand + np.float32(1))


def _raise(_: Any) -> Any:
    raise ValueError(PLANTED)


def _check_over(bench: Bench, callback: Callback, compiled: Callable[[Any], Any]) -> list[Anomaly]:
    """The failure is over: no computation remembers it, and after one more barrier no barrier does."""
    other = bench.applying(callback, _Faulty(_raise, armed=False))
    wanted = bench.expected(callback, bench.operand)
    anomalies = []
    for label, computation in (
        ("the same computation", compiled),
        ("another computation", other),
        ("the same computation again", compiled),
    ):
        anomalies += check_value(label, lambda c=computation: c(bench.operand), wanted)  # type: ignore[misc]
    # This one may still report the failure.
    error_of(bench.implementation.barrier)
    return anomalies + check_quiet_barrier(bench, "after clean computations")


def _raises(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The error is of one type, however often the program has run before."""
    faulty = _Faulty(_raise, armed=False)
    compiled = bench.applying(callback, faulty)
    anomalies = check_value(
        "the first, clean call", lambda: compiled(bench.operand), bench.expected(callback, bench.operand)
    )
    faulty.armed = True
    errors = [error_of(lambda: compiled(bench.operand)) for _ in range(CALLS)]
    faulty.armed = False
    for number, error in enumerate(errors, 1):
        if error is None:
            anomalies.append(Anomaly("swallowed error", Stage.RESULT, f"failing call {number} delivered a result"))
        elif not isinstance(error, JaxRuntimeError):
            witness = f"failing call {number} raised no JaxRuntimeError but {summary(error)}"
            anomalies.append(Anomaly("wrong error", Stage.DISPATCH, witness))
        elif PLANTED not in str(error):
            witness = f"failing call {number} does not say what was raised: {summary(error)}"
            anomalies.append(Anomaly("poor error", Stage.DISPATCH, witness))
    return anomalies[:1] + _check_over(bench, callback, compiled)


def _raises_unseen(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As above where nothing is returned: the program or the barrier says so, and then it is over."""
    faulty = _Faulty(_raise, armed=True)
    compiled = bench.applying(callback, faulty)
    anomalies = _check_surfaces(bench, compiled)
    faulty.armed = False
    return anomalies + _check_over(bench, callback, compiled)


def _check_surfaces(bench: Bench, compiled: Callable[[Any], Any], text: str = PLANTED) -> list[Anomaly]:
    error = error_of(lambda: compiled(bench.operand)) or error_of(bench.implementation.barrier)
    if error is None:
        witness = "a callback raised, and neither the program nor the barrier did"
        return [Anomaly("swallowed error", Stage.BARRIER, witness)]
    if text not in _everything(error):
        return [Anomaly("poor error", Stage.BARRIER, f"the error does not say what was raised: {summary(error)}")]
    return []


def _everything(error: BaseException) -> str:
    """The text of an exception and of all that it groups."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " ".join((str(error), *map(_everything, inner)))


def _raises_on_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One device of several fails; what is started next, on all of them, is clean."""
    marked = bench.operand[len(bench.devices) // 2][0]

    def raise_there(operand: Any) -> Any:
        if np.asarray(operand).ravel()[0] == marked:
            raise ValueError(f"{PLANTED} with {marked:.0f}")
        return np.asarray(operand + np.float32(1))

    faulty = _Faulty(raise_there, armed=True)
    compiled = bench.applying(callback, faulty)
    # Whichever device says it must say whose failure it is.
    anomalies = _check_surfaces(bench, compiled, f"{PLANTED} with {marked:.0f}")
    faulty.armed = False
    return anomalies + _check_over(bench, callback, compiled)


def _raises_before_collective(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One device fails while its peers wait for it in a collective."""

    def host(operand: Any) -> Any:
        if np.asarray(operand).ravel()[0] == bench.operand[1][0]:
            raise ValueError(PLANTED)
        return np.asarray(operand)

    compiled = bench.compile(lambda x: jax.lax.psum(bench.apply(callback, host, x), "devices") + x)
    return _check_surfaces(bench, compiled)


def _shapes(*sizes: int) -> str:
    """A pattern for the usual ways to write a shape: (3, 2), [3,2], float32[3,2]."""
    listed = ", ?".join(map(str, sizes))
    return rf"[\[(]{listed},?[\])]"


_WRONG_RESULTS: dict[str, tuple[Callable[[Any], Any], tuple[str, str]]] = {
    # What is returned, and patterns of what the error must name: what was expected, what came.
    "wrong_shape": (lambda operand: np.zeros((*operand.shape, 2), np.float32), (_shapes(WIDTH), _shapes(WIDTH, 2))),
    "wrong_dtype": (lambda operand: np.zeros(operand.shape, np.int32), (r"float32|f32", r"int32|[is]32")),
    "wrong_count": (
        lambda operand: (operand, operand),
        (r"Expected: 1|\*|float32\[3\]", r"Actual: 2|\(\*, \*\)|tuple"),
    ),
    "none": (lambda operand: None, (r"Expected: 1|\*|float32\[3\]", r"Actual: 0|None")),
    "error_mark": (lambda operand: ERROR_MARK, (_shapes(WIDTH) + "|float32", _shapes(12345) + "|int8")),
}


def _wrong_result(kind: str, runs_before: int = 0) -> Scenario:
    planted, patterns = _WRONG_RESULTS[kind]

    def scenario(bench: Bench, callback: Callback) -> list[Anomaly]:
        faulty = _Faulty(planted, armed=False)
        compiled = bench.applying(callback, faulty)
        for _ in range(runs_before):
            np.asarray(compiled(bench.operand))
        faulty.armed = True
        error = error_of(lambda: compiled(bench.operand))
        faulty.armed = False
        anomalies = []
        if error is None:
            anomalies.append(Anomaly("swallowed error", Stage.RESULT, f"a {kind} was delivered as a result"))
        elif not isinstance(error, JaxRuntimeError):
            anomalies.append(Anomaly("wrong error", Stage.DISPATCH, f"not a JaxRuntimeError: {summary(error)}"))
        else:
            anomalies += [
                Anomaly("poor error", Stage.DISPATCH, f"the error does not name {pattern!r}: {summary(error)}")
                for pattern in patterns
                if not re.search(pattern, str(error))
            ]
        return anomalies + _check_over(bench, callback, compiled)

    return scenario


def _legitimate_mark(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An int8[12345] that was asked for is a result like any other."""
    mark = (np.arange(12345) % 100).astype(np.int8)
    wanted = jax.ShapeDtypeStruct(mark.shape, mark.dtype)
    compiled = bench.compile(lambda x: bench.implementation.invoke(callback, lambda _: mark, x, wanted, bench.devices))
    anomalies = check_value("int8[12345]", lambda: compiled(bench.operand), mark)
    return anomalies + check_quiet_barrier(bench, "after a legitimate int8[12345]")


_SPECIAL_EXCEPTIONS = (KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit, MemoryError)


def _special_exceptions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Exceptions that mean something to Python are failures like any other: nothing ends, and nothing is lost."""
    anomalies = []
    for exception in _SPECIAL_EXCEPTIONS:

        def fail(_: Any, exception: type[BaseException] = exception) -> Any:
            raise exception(PLANTED)

        faulty = _Faulty(fail, armed=True)
        compiled = bench.applying(callback, faulty)
        try:
            anomalies += _check_surfaces(bench, compiled)
        except BaseException as error:
            witness = f"{exception.__name__} came through as {type(error).__name__}"
            anomalies.append(Anomaly("wrong error", Stage.DISPATCH, witness))
        faulty.armed = False
        anomalies += _check_over(bench, callback, compiled)
    return anomalies


def _has_cause(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The program ran in the calling thread: its error's cause is the exception itself."""
    error = error_of(lambda: bench.applying(callback, _Faulty(_raise, armed=True))(bench.operand))
    error_of(bench.implementation.barrier)
    cause = error and error.__cause__
    if isinstance(cause, ValueError) and str(cause) == PLANTED:
        return []
    return [Anomaly("poor error", Stage.DISPATCH, f"the error's cause is {cause!r}, not the callback's exception")]


def _keeps_its_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """What a callback was given stays what it was, whatever runs later."""
    kept: list[Any] = []

    def keep(operand: Any) -> Any:
        kept.append(np.asarray(operand))
        return np.asarray(operand + np.float32(1))

    compiled = bench.applying(callback, keep)
    operands = [bench.operand + np.float32(10 * run) for run in range(CALLS)]
    for operand in operands:
        np.asarray(compiled(operand))
    bench.implementation.barrier()
    gc.collect()
    noise = [np.asarray(bench.compile(lambda x: x * 2)(operand)) for operand in operands]
    del noise
    return [
        Anomaly("torn operand", Stage.CALLBACK, f"run {run} was given {operand.tolist()}, kept {array.tolist()}")
        for run, (operand, array) in enumerate(zip(operands, kept, strict=True))
        if not np.array_equal(operand, array)
    ]


def _changes_its_operand(bench: Bench, callback: Callback) -> list[Anomaly]:
    """What a callback does to its operand, if it can, is seen by nobody else."""

    def change(operand: Any) -> Any:
        result = np.asarray(operand + np.float32(1))
        array = np.asarray(operand)
        if array.flags.writeable:
            array[...] = -1
        return result

    def computation(x: Any) -> Any:
        result = bench.apply(callback, change, x)
        return result + 2 * x

    compiled = bench.compile(computation)
    on_device = jax.numpy.asarray(bench.operand)
    wanted = bench.expected(callback, bench.operand) + 2 * bench.operand
    anomalies = check_value("the computation", lambda: compiled(on_device), wanted)
    anomalies += check_value("the computation again", lambda: compiled(on_device), wanted)
    bench.implementation.barrier()
    return anomalies + check_value("the operand", lambda: on_device, bench.operand)


def _result_reaches_all(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One device calls, and the whole result is on every device, or its part: the compiler chooses."""
    # Not bench.compile: a sharding that is asked for would hide one that the callback leaves behind.
    computation = jax.jit(lambda x: bench.apply(callback, lambda operand: operand + 1, x), in_shardings=bench.split)
    result = computation(bench.operand)
    wanted = bench.operand + 1
    anomalies = check_value("the computation", lambda: result, wanted)
    for shard in result.addressable_shards:
        anomalies += check_value(f"the part on {shard.device}", lambda s=shard: s.data, wanted[shard.index])  # type: ignore[misc]
    return anomalies


def _names_its_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The program that is compiled gives the callback to the device that was named, the last one."""
    # A callback cannot tell which device calls, so this is read in the program.
    text = jax.jit(lambda x: bench.apply(callback, lambda operand: operand + 1, x), in_shardings=bench.split)
    lowered = text.lower(bench.operand).as_text()
    last = len(bench.devices) - 1
    if re.search(rf"device_ids ?= ?\[{last}\]|maximal device={last}\b", lowered):
        return []
    return [Anomaly("wrong device", Stage.LOWER, f"the lowered program gives nothing to device {last}")]


def _unknown_device(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A device that the computation does not run on is refused."""
    fewer = Bench(bench.implementation, "pjit", bench.devices[:-1])
    computation = fewer.compile(
        lambda x: bench.implementation.invoke(
            callback, lambda operand: operand + 1, x, jax.ShapeDtypeStruct(x.shape, x.dtype), bench.devices
        )
    )
    error = error_of(lambda: computation(fewer.operand))
    if isinstance(error, ValueError):
        return []
    came = "nothing was raised" if error is None else summary(error)
    return [Anomaly("not refused", Stage.LOWER, f"a device of no mesh must be refused with ValueError: {came}")]


def _returns_a_value(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback that is given its results to write has nothing to return."""
    compiled = bench.compile(lambda x: bench.implementation.returning_buffers(callback, x))
    error = error_of(lambda: compiled(bench.operand))
    error_of(bench.implementation.barrier)
    if error is None:
        return [Anomaly("swallowed error", Stage.RESULT, "what a buffer callback returned was accepted")]
    if "must not return" not in str(error):
        return [Anomaly("poor error", Stage.DISPATCH, f"the error does not say what is wrong: {summary(error)}")]
    return check_quiet_barrier(bench, "after a refused value")


_SCENARIOS: dict[str, Scenario] = {
    "raises": _raises,
    "raises_unseen": _raises_unseen,
    "raises_on_one": _raises_on_one,
    "raises_before_collective": _raises_before_collective,
    **{kind: _wrong_result(kind) for kind in _WRONG_RESULTS},
    "wrong_after_right": _wrong_result("wrong_shape", runs_before=3),
    "special_exceptions": _special_exceptions,
    "legitimate_mark": _legitimate_mark,
    **REPORTED,
    "runs_jax_inside": runs_on_one_device,
    "runs_pmap": runs_pmap,
    "runs_mesh": runs_mesh,
    "starts_others": starts_others,
    "blocks_until_released": blocks_until_released,
    "two_threads": two_threads,
    "order_across_threads": order_across_threads,
    "full_queue": full_queue,
    "os_exit": os_exit,
    "shared_executables": shared_executables,
    "running_at_exit": running_at_exit,
    "forks": forks,
    "signals": signals,
    "keeps_its_view": keeps_its_view,
    "fails_and_is_kept": fails_and_is_kept,
    "several_fail": several_fail,
    "fails_before_calls": fails_before_calls,
    "stops_and_starts": stops_and_starts,
    "flags": flags,
    "has_cause": _has_cause,
    "keeps_its_operand": _keeps_its_operand,
    "changes_its_operand": _changes_its_operand,
    "returns_a_value": _returns_a_value,
    "result_reaches_all": _result_reaches_all,
    "names_its_device": _names_its_device,
    "unknown_device": _unknown_device,
    "loop_without_operands": loop_without_operands,
    "cond_without_results": cond_without_results,
    "equal_operands": equal_operands,
}


def run_external_fault(kind: str, callback_name: str, bench: Bench) -> list[Anomaly]:
    return _SCENARIOS[kind](bench, _BY_NAME[callback_name])
