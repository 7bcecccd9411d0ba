"""Fault cells of callbacks of any kind that fail, the same for every implementation.

If the contract leaves it open, the implementation chooses whether the program or the next barrier raises
the failure. One of them must raise it, with its text. After that, the failure must have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import JaxRuntimeError
from .harness.bench import WIDTH, Bench
from .harness.checks import ERROR_MARK, PLANTED, check_quiet_barrier, check_value, error_of
from .harness.registry import COLLECTIVE_TIMEOUT_FLAGS, EVERY_KIND, WITH_RESULTS, WITH_SIDE_EFFECT, Scenario, planted

CALLS = 10


class _Faulty:
    """A host function that runs the planted fault while it is armed, and otherwise adds one."""

    def __init__(self, fault: Callable[[Any], Any], armed: bool) -> None:
        self.fault = fault
        self.armed = armed

    def __call__(self, operand: Any) -> Any:
        return self.fault(operand) if self.armed else np.asarray(operand + np.float32(1))


def _raise(_: Any) -> Any:
    raise ValueError(PLANTED)


def _check_over(bench: Bench, callback: Callback, compiled: Callable[[Any], Any]) -> list[Anomaly]:
    """The failure is over: no computation raises it, and after one more barrier no barrier raises it."""
    other = bench.applying(callback, _Faulty(_raise, armed=False))
    wanted = bench.expected(callback, bench.operand)
    anomalies = []
    for label, computation in (
        ("the same computation", compiled),
        ("another computation", other),
        ("the same computation again", compiled),
    ):
        anomalies += check_value(label, lambda c=computation: c(bench.operand), wanted)  # type: ignore[misc]
    # This barrier may still report the failure.
    error_of(bench.implementation.barrier)
    return anomalies + check_quiet_barrier(bench, "after clean computations")


@planted(
    "jit", "pure_callback io_callback io_callback_ordered buffer_callback dlpack_callback", also="H15", isolated=True
)
@planted("pmap shard_map", "pure_callback io_callback buffer_callback dlpack_callback", also="H15", minimum_devices=2)
@planted("pjit", "buffer_callback dlpack_callback", also="H15", minimum_devices=2)
@planted("pmap shard_map", "io_callback_ordered", also="H15", minimum_devices=2, isolated=True)
@planted(
    "pjit",
    "pure_callback io_callback io_callback_ordered",
    also="H15",
    minimum_devices=2,
    isolated=True,
    # JAX's own callbacks hang.
    deadline=8.0,
)
def raises(bench: Bench, callback: Callback) -> list[Anomaly]:
    """No run of the program delivers a result. The error has the same type in the first and in later runs."""
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


@planted("jit", "debug_callback debug_callback_ordered", isolated=True)
def raises_unseen(bench: Bench, callback: Callback) -> list[Anomaly]:
    """As above for a callback without results: the program or the barrier raises, and then the failure is over."""
    faulty = _Faulty(_raise, armed=True)
    compiled = bench.applying(callback, faulty)
    anomalies = _check_surfaces(bench, compiled)
    faulty.armed = False
    return anomalies + _check_over(bench, callback, compiled)


@planted(
    "pjit",
    "call io_callback io_callback_ordered debug_callback debug_callback_ordered",
    also="H10 H15",
    minimum_devices=2,
    isolated=True,
)
def ends_without_results(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A callback without results fails on one device of a mesh: the program ends with it at every run."""
    if callback.function == "call":
        through = lambda x: bench.implementation.call(_raise, x, None)
    else:
        through = lambda x: bench.implementation.invoke(callback, _raise, x, None, bench.devices)
    compiled = bench.compile(lambda x: (through(x), x + 1)[1])
    anomalies = []
    for number in range(1, 4):
        error = error_of(lambda: compiled(bench.operand))
        error_of(bench.implementation.barrier)
        if not isinstance(error, JaxRuntimeError) or PLANTED not in str(error):
            came = "delivered a result" if error is None else f"raised {summary(error)}"
            anomalies.append(Anomaly("swallowed error", Stage.RESULT, f"run {number} {came}"))
    return anomalies


def _check_surfaces(bench: Bench, compiled: Callable[[Any], Any], text: str = PLANTED) -> list[Anomaly]:
    error = error_of(lambda: compiled(bench.operand)) or error_of(bench.implementation.barrier)
    if error is None:
        witness = "a callback raised, and neither the program nor the barrier did"
        return [Anomaly("swallowed error", Stage.BARRIER, witness)]
    if text not in _everything(error):
        return [Anomaly("poor error", Stage.BARRIER, f"the error does not say what was raised: {summary(error)}")]
    return []


def _everything(error: BaseException) -> str:
    """The text of an exception and of all exceptions in its group."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " ".join((str(error), *map(_everything, inner)))


@planted("pmap shard_map", "id_tap call")
@planted("shard_map", "pure_callback io_callback debug_callback io_callback_ordered", minimum_devices=2, isolated=True)
def raises_on_one(bench: Bench, callback: Callback) -> list[Anomaly]:
    """One device of several fails; the next program on all devices runs without a failure."""
    marked = bench.operand[len(bench.devices) // 2][0]

    def raise_there(operand: Any) -> Any:
        if np.asarray(operand).ravel()[0] == marked:
            raise ValueError(f"{PLANTED} with {marked:.0f}")
        return np.asarray(operand + np.float32(1))

    faulty = _Faulty(raise_there, armed=True)
    compiled = bench.applying(callback, faulty)
    # Any device may report the failure, but the report must name the right device.
    anomalies = _check_surfaces(bench, compiled, f"{PLANTED} with {marked:.0f}")
    faulty.armed = False
    return anomalies + _check_over(bench, callback, compiled)


@planted("shard_map", "pure_callback io_callback", xla_flags=COLLECTIVE_TIMEOUT_FLAGS, minimum_devices=2, isolated=True)
def raises_before_collective(bench: Bench, callback: Callback) -> list[Anomaly]:
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
    # The returned value, and patterns that the error must match: the expected type, the actual type.
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


for _kind in ("wrong_shape", "wrong_dtype", "wrong_count"):
    planted("jit", "pure_callback io_callback", also="H15", kind=_kind, isolated=True)(_wrong_result(_kind))
    planted("jit", "dlpack_callback", kind=_kind)(_wrong_result(_kind))
for _kind in ("none", "error_mark"):
    planted("jit", "pure_callback io_callback dlpack_callback", kind=_kind)(_wrong_result(_kind))
planted("jit", f"{WITH_RESULTS} io_callback_ordered dlpack_callback", kind="wrong_after_right")(
    _wrong_result("wrong_shape", runs_before=3)
)


@planted("jit pmap pjit shard_map", "call")
@planted("jit", "pure_callback io_callback")
def legitimate_mark(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An int8[12345] that the `result_shape` asks for is a result like any other."""
    mark = (np.arange(12345) % 100).astype(np.int8)
    shape = {"shard_map": (1, 12345), "pjit": (len(bench.devices), 12345)}.get(bench.layout, (12345,))
    result = np.broadcast_to(mark, shape)
    like = jax.ShapeDtypeStruct(shape, np.int8)
    compiled = bench.compile(lambda x: bench.apply(callback, lambda _: result, x, like))
    wanted = mark if bench.layout == "jit" else np.stack([mark] * len(bench.devices))
    anomalies = check_value("int8[12345]", lambda: compiled(bench.operand), wanted)
    return anomalies + check_quiet_barrier(bench, "after a legitimate int8[12345]")


_SPECIAL_EXCEPTIONS = (KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit, MemoryError)


@planted("jit", f"{EVERY_KIND} {WITH_SIDE_EFFECT}", also="H14 H15")
def special_exceptions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Exceptions with a meaning for Python are ordinary failures: no thread ends, and no callback is lost."""
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


@planted("jit", "pure_callback io_callback", also="H15", isolated=True)
def has_cause(bench: Bench, callback: Callback) -> list[Anomaly]:
    """For a program that ran in the calling thread, the cause of the error is the exception itself."""
    error = error_of(lambda: bench.applying(callback, _Faulty(_raise, armed=True))(bench.operand))
    error_of(bench.implementation.barrier)
    cause = error and error.__cause__
    if isinstance(cause, ValueError) and str(cause) == PLANTED:
        return []
    return [Anomaly("poor error", Stage.DISPATCH, f"the error's cause is {cause!r}, not the callback's exception")]
