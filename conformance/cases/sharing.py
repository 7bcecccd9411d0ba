"""Fault cells of callbacks that are equal or nearly equal, of errors that travel, and of settings of the process."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import sys
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .barriers import PATIENCE
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of
from .harness.registry import planted
from .traces import library


class Adding:
    """Functions that are equal if they add the same."""

    def __init__(self, number: int, seen: list[Any]) -> None:
        self.number = number
        self.seen = seen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adding) and (self.number, self.seen is other.seen) == (other.number, True)

    def __hash__(self) -> int:
        # The same for all, so that equality decides.
        return 7

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        self.seen.append(self.number)
        return np.asarray(operand) + np.float32(self.number)


@planted("jit", "id_tap call pure_callback io_callback io_callback_ordered", "H18")
def equal_functions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H18: callbacks with equal functions are one in JAX's caches, and those with other functions are not."""
    seen: list[int] = []
    traces: list[None] = []

    @functools.partial(jax.jit, static_argnums=1)
    def program(x: Any, function: Any) -> Any:
        traces.append(None)
        return applied(function, x)

    def applied(function: Any, x: Any) -> Any:
        # The function itself: what `Bench.apply` wraps around that of a tap is another one each time.
        return (
            bench.implementation.tap(function, x)
            if callback.function == "id_tap"
            else bench.apply(callback, function, x)
        )

    def jaxpr(function: Any) -> Any:
        return jax.make_jaxpr(lambda x: applied(function, x))(bench.operand)

    anomalies = []
    for number in (1, 2, 1):
        result = np.asarray(program(bench.operand, Adding(number, seen)))
        bench.implementation.barrier()
        wanted = bench.operand + np.float32(number) if callback.returns_new_value else bench.operand
        if not np.array_equal(result, wanted):
            anomalies.append(Anomaly("result", Stage.RESULT, f"adding {number} gave {result}, expected {wanted}"))
    if seen != [1, 2, 1]:
        anomalies.append(Anomaly("wrong callback", Stage.CALLBACK, f"{seen} were called, expected 1, 2 and 1"))
    if len(traces) != 2:
        anomalies.append(Anomaly("wrong count", Stage.TRACE, f"two functions were traced {len(traces)} times"))
    one, same, other = (_parameters(jaxpr(Adding(number, seen))) for number in (1, 1, 2))
    if one != same or one == other:
        witness = f"equations with equal functions are {'equal' if one == same else 'not equal'}, with others the same"
        anomalies.append(Anomaly("equality", Stage.TRACE, witness))
    return anomalies


@planted("jit", "id_print", "H18")
def equal_prints(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H18: prints of the same text are equal, and those with another text or other print options of NumPy are not."""
    prints = library(bench)

    def with_label(label: str) -> Any:
        return lambda x: prints.id_print(x, what=label)

    def with_text(text: str) -> Any:
        return lambda x: (prints.debug.print(text, x=x), x)[1]

    anomalies = []
    for name, printing, words in (("id_print", with_label, ("a", "b")), ("debug.print", with_text, ("{x}", "of {x}"))):
        one, same, other = (
            _parameters(jax.make_jaxpr(printing(each))(bench.operand)) for each in (words[0], words[0], words[1])
        )
        if one != same or _hashes(one) != _hashes(same) or one == other:
            witness = f"{name}: equal texts are no equal keys of a cache, or different ones are"
            anomalies.append(Anomaly("equality", Stage.TRACE, witness))
        if name == "debug.print":
            with np.printoptions(precision=2):
                rounded = _parameters(jax.make_jaxpr(printing(words[0]))(bench.operand))
            if one == rounded:
                anomalies.append(Anomaly("equality", Stage.TRACE, "other print options make the same program"))
    return anomalies


def _parameters(closed: Any) -> list[Any]:
    return [sorted(equation.params.items(), key=lambda item: item[0]) for equation in closed.jaxpr.eqns]


def _hashes(parameters: list[Any]) -> list[int]:
    """What JAX's caches look up."""
    return [hash(value) for of_equation in parameters for _, value in of_equation if isinstance(value, Hashable)]


class StaysHereError(Exception):
    """An exception of a function, which no other process could make."""

    def __reduce__(self) -> Any:
        raise TypeError("this exception stays where it is")


class CodedError(Exception):
    """An exception that can be pickled and not made again: its constructor takes more than its text."""

    def __init__(self, code: int, place: str) -> None:
        super().__init__(f"{code} at {place}")


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda error: pickle.loads(pickle.dumps(error)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
}


@planted("jit", "id_tap call io_callback", "H13 H14 H15", functions="barrier_wait")
def errors_travel(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The barrier's exception can be pickled and copied, with its text, failures, cause and notes."""

    class LocalError(Exception):
        """An exception whose class no other process finds."""

    anomalies = []
    for planted_error in (ValueError(PLANTED), StaysHereError(PLANTED), CodedError(404, PLANTED), LocalError(PLANTED)):

        def failing(operand: Any, error: Exception = planted_error) -> Any:
            raise error

        error_of(lambda: bench.applying(callback, failing)(bench.operand))
        raised = error_of(bench.implementation.barrier)
        if not isinstance(raised, bench.implementation.callback_exception):
            return [Anomaly("swallowed error", Stage.BARRIER, f"the barrier raised {raised!r}")]
        caught: Any = raised
        caught.add_note("a note of the program")
        for way, copied in WAYS.items():
            try:
                again: Any = copied(caught)
            except Exception as error:
                return [Anomaly("poor error", Stage.BARRIER, f"it cannot be {way}: {summary(error)}")]
            if type(again) is not type(caught) or str(again) != str(caught):
                anomalies.append(Anomaly("poor error", Stage.BARRIER, f"{way} it is {again!r}, was {caught!r}"))
            elif not _alike(again.failures, caught.failures):
                anomalies.append(Anomaly("poor error", Stage.BARRIER, f"{way} it has {again.failures}"))
            if getattr(again, "__notes__", None) != caught.__notes__ or PLANTED not in str(again.__cause__):
                witness = f"{way} it has {getattr(again, '__notes__', None)} and the cause {again.__cause__!r}"
                anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
        if len(caught.failures) != 1 or PLANTED not in str(caught.failures[0].exception):
            anomalies.append(Anomaly("poor error", Stage.BARRIER, f"its failures are {caught.failures}"))
    return anomalies or check_quiet_barrier(bench, "after exceptions that were copied")


def _alike(found: Any, wanted: Any) -> bool:
    """An exception that no other process can make travels as its text."""
    pairs = [*zip(found, wanted, strict=True)]
    return bool(pairs) and all(
        _told(one) == _told(other) and str(other.exception) in str(one.exception) for one, other in pairs
    )


def _told(failure: Any) -> tuple[Any, ...]:
    return failure.callback, str(failure.device), failure.text, failure.headline, failure.kind, failure.ended


@planted("jit", "id_tap", "H16", isolated=True)
def switch_interval(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The interval of the process is the setting's while a program with callbacks is alive, and the old one after."""
    before = sys.getswitchinterval()
    found: dict[str, tuple[float, float]] = {}

    def alive(name: str, wanted: float) -> None:
        compiled = bench.compile(lambda x: bench.implementation.tap(lambda *_: None, x))
        compiled(bench.operand)
        bench.implementation.barrier()
        found[name] = sys.getswitchinterval(), wanted
        del compiled
        found[f"after {name}"] = _interval_after_the_end(before), before

    alive("the default", 1e-4)
    jax.config.update("hostcb_switch_interval", 3e-4)
    alive("another setting", 3e-4)
    jax.config.update("hostcb_switch_interval", 0)
    alive("never", before)
    jax.config.update("hostcb_switch_interval", None)
    for name, change, wanted in (
        ("never, set while a program is alive", lambda: jax.config.update("hostcb_switch_interval", 0), before),
        ("one that the program has set by itself", lambda: sys.setswitchinterval(2e-2), 2e-2),
    ):
        compiled = bench.compile(lambda x: bench.implementation.tap(lambda *_: None, x))
        compiled(bench.operand)
        bench.implementation.barrier()
        change()
        found[name] = sys.getswitchinterval(), wanted
        del compiled
        found[f"after {name}"] = _interval_after_the_end(wanted), wanted
        jax.config.update("hostcb_switch_interval", None)
        sys.setswitchinterval(before)
    return [
        Anomaly("setting", Stage.DISPATCH, f"with {name} the switch interval is {seen:g} s, expected {wanted:g}")
        for name, (seen, wanted) in found.items()
        if abs(seen - wanted) > 1e-6
    ]


# Each is the first in its process: the runtime may let an executable go a moment after the program did.
@planted("jit", "id_tap", "H16", isolated=True)
def switch_interval_of_several(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The interval stays the setting's while one of several programs is alive."""
    kept: list[Any] = [bench.compile(lambda x: bench.implementation.tap(lambda *_: None, x)) for _ in range(2)]
    for number in range(len(kept)):
        kept[number](bench.operand)
    bench.implementation.barrier()
    # JAX's caches do not keep it.
    ahead = kept[0].lower(bench.operand).compile()
    kept.clear()
    jax.clear_caches()
    gc.collect()
    return _interval("one of several programs", 1e-4) if ahead else []


@planted("jit", "id_tap", "H16", isolated=True)
def shorter_switch_interval(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An interval of the program's own that is shorter than the setting stays as it is."""
    sys.setswitchinterval(2e-5)
    compiled = bench.compile(lambda x: bench.implementation.tap(lambda *_: None, x))
    compiled(bench.operand)
    bench.implementation.barrier()
    return _interval("a shorter one of its own", 2e-5)


@planted("jit", "id_tap", "H16 H25", isolated=True)
def intervals_are_restored(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H25: the interval comes back to the microsecond, as often as programs come and go."""
    for wanted in (0.005, 0.0029, 0.00115, 0.0041, 0.0037, 0.000281):
        sys.setswitchinterval(wanted)
        before = sys.getswitchinterval()
        for _ in range(2):
            compiled = bench.compile(lambda x: bench.implementation.tap(lambda *_: None, x))
            compiled(bench.operand)
            bench.implementation.barrier()
            del compiled
            found = _interval_after_the_end(before, within=0.0)
            if found != before:
                witness = f"an interval of {before!r} s came back as {found!r}"
                return [Anomaly("setting", Stage.DISPATCH, witness)]
    return []


def _interval_after_the_end(wanted: float, within: float = 1e-6) -> float:
    """Return the interval when programs have ended: the runtime may let an executable go a moment later."""
    latest = time.monotonic() + PATIENCE
    jax.clear_caches()
    while True:
        gc.collect()
        found = sys.getswitchinterval()
        if abs(found - wanted) <= within or time.monotonic() > latest:
            return found
        threading.Event().wait(0.01)


def _interval(what: str, wanted: float) -> list[Anomaly]:
    found = sys.getswitchinterval()
    if abs(found - wanted) < 1e-6:
        return []
    return [Anomaly("setting", Stage.DISPATCH, f"with {what} the switch interval is {found:g} s, expected {wanted:g}")]


@planted("jit pmap", "call", "H3")
def gets_jax_arrays(bench: Bench, callback: Callback) -> list[Anomaly]:
    """`jax_arrays` gives a function JAX arrays with the operand's values, and passes on its results and its errors.

    What the function makes is where these are, and not on the default device of the program.
    """
    places: list[tuple[Any, Any]] = []

    def host(operand: Any) -> Any:
        if not isinstance(operand["a"], jax.Array):
            raise TypeError(f"{operand} is no JAX array")
        places.append((operand["a"].devices(), jnp.ones(2).devices()))
        return {"b": operand["a"] * 2}

    wrapped = library(bench).jax_arrays(host)
    named: list[list[bool]] = []

    def by_name(x: Any, *, y: Any) -> None:
        named.append([isinstance(each, jax.Array) for each in (x, y)])

    library(bench).debug.callback(library(bench).jax_arrays(by_name), bench.operand, y=bench.operand)
    bench.implementation.barrier()

    def program(x: Any) -> Any:
        return bench.implementation.call(wrapped, {"a": x}, {"b": jax.ShapeDtypeStruct(x.shape, x.dtype)})["b"]

    with jax.default_device(bench.devices[-1]):
        result = np.asarray(bench.compile(program)(bench.operand))
        bench.implementation.barrier()
    anomalies = []
    if named != [[True, True]]:
        witness = f"whether operands by place and by name are JAX's arrays: {named}"
        anomalies.append(Anomaly("wrong operand", Stage.CALLBACK, witness))
    if any(given != made for given, made in places):
        witness = f"of the arrays that the function got and made, the devices are {places}"
        anomalies.append(Anomaly("wrong device", Stage.CALLBACK, witness))
    if not np.array_equal(result, bench.operand * 2):
        anomalies.append(Anomaly("result", Stage.RESULT, f"it gave {result}, expected {bench.operand * 2}"))
    if wrapped != library(bench).jax_arrays(host) or hash(wrapped) != hash(library(bench).jax_arrays(host)):
        anomalies.append(Anomaly("equality", Stage.TRACE, "a function that is wrapped twice makes two programs"))
    if wrapped.__wrapped__ is not host:
        anomalies.append(Anomaly("value", Stage.TRACE, "the wrapped function is not `__wrapped__`"))
    return anomalies
