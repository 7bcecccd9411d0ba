"""Fault cells of exceptions of unusual classes, and of what a barrier's exception has and keeps of several failures."""

from __future__ import annotations

import gc
import traceback
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of, filtering
from .harness.registry import planted
from .traces import library

RUNS = 3
FAILURES = 4


class EmptyError(Exception):
    """An exception that is false, as a group of errors without an error is."""

    def __len__(self) -> int:
        return 0


class ExitingError(Exception):
    """An exception whose text ends the thread that asks for it."""

    def __str__(self) -> str:
        raise SystemExit(3)


class InterruptedTextError(Exception):
    """An exception whose text is interrupted."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class FalseError(Exception):
    def __bool__(self) -> bool:
        return False


class UnequalError(Exception):
    def __eq__(self, other: object) -> bool:
        raise TypeError("not to be compared")

    __hash__ = None  # type: ignore[assignment]


class SealedError(Exception):
    """An exception that takes no attribute, as those of some compiled libraries do."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"{name} cannot be set")


CLASSES = (SealedError, EmptyError, FalseError, UnequalError, ExitingError, InterruptedTextError)


@planted("jit", "pure_callback", "H15", functions="barrier_wait")
@planted("jit", "id_tap call io_callback io_callback_ordered", "H13 H14 H15", functions="barrier_wait")
def exceptions_of_any_class(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H14, H15: whatever an exception does when asked, its failure is told and has it as the cause."""
    anomalies: list[Anomaly] = []
    owners: dict[type[Exception], set[tuple[Any, ...]]] = {}
    for each in (ValueError, *CLASSES):

        def failing(operand: Any, each: type[Exception] = each) -> Any:
            raise each(PLANTED)

        compiled = bench.applying(callback, failing)
        # The first runs may take another way than the later ones.
        for run in range(RUNS):
            # To leave out frames asks the exception for its traceback, and sets it.
            with filtering():
                raised: Any = _raised(lambda: jax.block_until_ready(compiled(bench.operand)))  # noqa: B023
                reported: Any = _raised(bench.implementation.barrier)
            where = {"the barrier": reported} | ({"the computation": raised} if callback.function != "id_tap" else {})
            for what, error in where.items():
                if type(getattr(error, "__cause__", None)) is not each:
                    witness = f"run {run} of a function that raises {each.__name__}: {what} came to {_name(error)}"
                    anomalies.append(Anomaly("swallowed error", Stage.BARRIER, witness))
            failures = getattr(reported, "failures", ())
            if len(failures) != 1:
                witness = f"run {run} of a function that raises {each.__name__} is not one failure"
                anomalies.append(Anomaly("swallowed error", Stage.BARRIER, witness))
            owners.setdefault(each, set()).update((one.kind, one.callback, one.device, one.ended) for one in failures)
    for each in CLASSES:
        if owners[each] != owners[ValueError]:
            witness = f"{each.__name__} was told as of {owners[each]}, and ValueError as of {owners[ValueError]}"
            anomalies.append(Anomaly("wrong callback", Stage.BARRIER, witness))
    return anomalies[:3] + check_quiet_barrier(bench, "after exceptions of unusual classes")


def _raised(run: Any) -> BaseException | None:
    """The exception of any class: a failure may come as SystemExit where it must not."""
    try:
        run()
    except BaseException as error:
        return error
    return None


def _name(error: BaseException | None) -> str:
    """Its text may raise."""
    return f"{type(error).__name__} with the cause {type(getattr(error, '__cause__', None)).__name__}"


@planted("jit", "call io_callback", "H13 H15 H32", functions="barrier_wait")
def which_has_ended(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H32: of several failures the barrier says of the last one whether a computation has ended with it."""

    def failing(operand: Any, *others: Any) -> Any:
        raise ValueError(PLANTED)

    compiled = bench.applying(callback, failing)

    def ends() -> None:
        error_of(lambda: jax.block_until_ready(compiled(bench.operand)))

    def goes_on() -> None:
        bench.implementation.tap(failing, bench.operand)
        # It waits, and takes no failure.
        jax.effects_barrier()

    anomalies: list[Anomaly] = []
    for order in ((ends,), (goes_on,), (goes_on, ends), (ends, goes_on), (ends, goes_on, ends)):
        for each in order:
            each()
        reported: Any = error_of(bench.implementation.barrier)
        found = ([each.ended for each in reported.failures], "has ended with this failure" in str(reported))
        wanted = ([each is ends for each in order], order[-1] is ends)
        if found != wanted:
            witness = f"which of failures in order have ended a computation, and the text's last: {found}, not {wanted}"
            anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    return anomalies + check_quiet_barrier(bench, "after several failures")


class _Object:
    """A local variable, which a weak reference can watch."""


@planted("jit", "id_tap call", "H13 H14 H15", functions="barrier_wait")
def callers_of_causes_are_let_go(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H13: older failures keep no local variables of the functions that called what made the cause or the context."""
    watched: list[weakref.ref[_Object]] = []

    def open_missing() -> Exception:
        try:
            raise OSError(PLANTED)
        except OSError as error:
            return error

    def calls_it() -> Exception:
        local = _Object()
        watched.append(weakref.ref(local))
        return open_missing()

    def from_a_cause(operand: Any) -> Any:
        raise ValueError(PLANTED) from calls_it()

    def in_a_context(operand: Any) -> Any:
        error = ValueError(PLANTED)
        error.__context__ = calls_it()
        raise error

    anomalies: list[Anomaly] = []
    for host in (from_a_cause, in_a_context):
        watched.clear()
        compiled = bench.applying(callback, host)
        for _ in range(FAILURES):
            error_of(lambda: jax.block_until_ready(compiled(bench.operand)))  # noqa: B023
            # A tap's failure is known then.
            jax.effects_barrier()
        gc.collect()
        kept = [number for number, reference in enumerate(watched) if reference() is not None]
        error_of(bench.implementation.barrier)
        if len(watched) != FAILURES or kept not in ([], [FAILURES - 1]):
            witness = f"of {len(watched)} failures ({host.__name__}), local variables of its callers are kept by {kept}"
            anomalies.append(Anomaly("leak", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after failures with causes")


@planted("jit", "id_tap call io_callback", "H32", functions="barrier_wait")
def frames_of_the_library(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H32: the traceback of a failed function has the library's frames if JAX is told to filter none, and only then."""
    folder = str(Path(library(bench).__file__).parent)

    def calls_it(operand: Any) -> Any:
        raise ValueError(f"{PLANTED}")

    def failing(operand: Any) -> Any:
        return calls_it(np.asarray(operand))

    anomalies: list[Anomaly] = []
    for way in ("off", "remove_frames", "tracebackhide"):
        with filtering(way):
            error_of(lambda: jax.block_until_ready(bench.applying(callback, failing)(bench.operand)))
            reported: Any = error_of(bench.implementation.barrier)
        cause = reported.__cause__ if reported is not None else None
        frames = traceback.extract_tb(cause.__traceback__) if cause is not None else []
        own = [frame.name for frame in frames if not frame.filename.startswith(folder)]
        if (own[-2:], len(own) < len(frames)) != (["failing", "calls_it"], way == "off"):
            witness = f"with the filter {way}, the traceback has the frames {[frame.name for frame in frames]}"
            anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    return anomalies + check_quiet_barrier(bench, "after failures with and without frames")
