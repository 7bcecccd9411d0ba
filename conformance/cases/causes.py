"""Fault cells of whose failure it is: the cause of an error, the task that gets it, and what of it stays alive."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.jax_versions import JaxRuntimeError
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, check_value, error_of, still_alive
from .harness.registry import WITH_RESULTS, planted
from .traces import library

NUMBER = jax.ShapeDtypeStruct((), np.float32)
OTHER = "a failure of another origin"
STEPS = 4


@planted("jit", "call io_callback", "H15 X3", functions="barrier_wait", isolated=True)
def cause_of_another_origin(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An error that JAX's own callback brings about has not the cause of an earlier run's failed callback."""
    fails = ""

    def mine(operand: Any) -> Any:
        if fails == "mine":
            raise KeyError(PLANTED)
        return np.asarray(operand)

    def of_jax(operand: Any) -> Any:
        if fails == "of JAX":
            raise OSError(OTHER)
        return np.asarray(operand)

    program = jax.jit(lambda x: jax.pure_callback(of_jax, NUMBER, bench.apply(callback, mine, x)))
    anomalies: list[Anomaly] = []
    for origin, text in (("mine", PLANTED), ("of JAX", OTHER), ("mine", PLANTED), ("of JAX", OTHER)):
        fails = origin
        error = error_of(lambda: jax.block_until_ready(program(np.float32(1))))
        fails = ""
        caused = error is not None and isinstance(error.__cause__, KeyError)
        if error is None or text not in str(error) or caused != (origin == "mine"):
            cause = "no error" if error is None else f"{summary(error)} with the cause {error.__cause__!r}"
            anomalies.append(Anomaly("wrong error", Stage.RESULT, f"a failure {origin} came to {cause}"))
    error_of(bench.implementation.barrier)
    return anomalies + check_value("the program", lambda: program(np.float32(1)), np.float32(1))


@planted("jit", WITH_RESULTS, "H15 X2 X3", functions="barrier_wait")
def failures_in_tasks(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Each task of asyncio gets the failures of its own calls, goes on after them, and comes to its end."""

    def host(operand: Any) -> Any:
        if int(operand) % 2:
            raise ValueError(PLANTED)
        return np.asarray(operand)

    program = bench.applying(callback, host)
    told: list[str] = []

    async def steps(name: str) -> None:
        for number in range(STEPS):
            try:
                jax.block_until_ready(program(np.float32(number)))
            except JaxRuntimeError:
                told.append(f"{name}{number}")
            await asyncio.sleep(0)
        told.append(f"{name} ended")

    async def both() -> None:
        await asyncio.gather(steps("a"), steps("b"))

    error = error_of(lambda: asyncio.run(both()))
    error_of(bench.implementation.barrier)
    wanted = sorted(f"{name}{what}" for name in "ab" for what in ("1", "3", " ended"))
    if error is not None or sorted(told) != wanted:
        witness = f"two tasks noted {sorted(told)}, expected {wanted}, and ended with {error!r}"
        return [Anomaly("wrong error", Stage.RESULT, witness)]
    return check_quiet_barrier(bench, "after two tasks")


class _Positive:
    """A result that refuses a number that is not positive, as some libraries' classes of parameters do."""

    def __init__(self, value: Any) -> None:
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not float(value) > 0:
            raise ArithmeticError(f"{value} is not positive")
        self.value = value


jax.tree_util.register_pytree_node(
    _Positive, lambda positive: ((positive.value,), None), lambda _, values: _Positive(*values)
)


class _PositiveFields(NamedTuple):
    """A named tuple of which subclasses refuse such a number."""

    value: Any


class _PositiveTuple(_PositiveFields):
    """A named tuple that refuses such a number where it is made."""

    __slots__ = ()

    def __new__(cls, value: Any) -> Any:
        return super().__new__(cls, _Positive(value).value)


class _InitiatedTuple(_PositiveFields):
    def __init__(self, value: Any) -> None:
        _Positive(value)


class _Inherited(_PositiveTuple):
    """One that inherits the check."""

    __slots__ = ()


@dataclasses.dataclass
class _PositiveData:
    """A dataclass that refuses such a number."""

    value: Any

    def __post_init__(self) -> None:
        _Positive(self.value)


jax.tree_util.register_pytree_node(
    _PositiveData, lambda data: ((data.value,), None), lambda _, values: _PositiveData(*values)
)

CHECKED: dict[str, Callable[[Any, Any], Any]] = {
    "a class": lambda y, x: _Positive(y),
    "a class in a tuple": lambda y, x: (x, _Positive(y)),
    "a class in a dict in a list": lambda y, x: [x, {"a": x, "b": _Positive(y)}],
    "a class in a named tuple": lambda y, x: _PositiveFields(_Positive(y)),
    "a named tuple with __new__": lambda y, x: _PositiveTuple(y),
    "a named tuple with __new__, in a dict": lambda y, x: {"a": x, "b": _PositiveTuple(y)},
    "a named tuple that inherits __new__": lambda y, x: _Inherited(y),
    "a named tuple with __init__": lambda y, x: (x, _InitiatedTuple(y)),
    "a dataclass": lambda y, x: {"a": _PositiveData(y)},
}
"""Ways to return a call's result, and an operand."""


@planted("jit", WITH_RESULTS, "H15 X2 X3", functions="barrier_wait")
def results_that_are_checked(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A class that checks its values sees none of a failed call: the error is that of the call, and of no check."""
    fails = False

    def host(operand: Any) -> Any:
        if fails:
            raise ValueError(PLANTED)
        return np.asarray(operand)

    anomalies: list[Anomaly] = []
    for what, put in CHECKED.items():
        program = jax.jit(lambda x, put=put: put(bench.apply(callback, host, x), x))
        # A program is dispatched in another way from its second run on.
        for fails in (False, False, True, True, False, True, False):
            error = error_of(lambda: jax.tree.leaves(program(np.float32(2)))[-1])  # noqa: B023 - called at once
            error_of(bench.implementation.barrier)
            if (error is not None) != fails or (
                fails and (type(error) is not JaxRuntimeError or PLANTED not in str(error))
            ):
                witness = f"a call whose result is in {what}, and that fails ({fails}), came to {error!r}"
                anomalies.append(Anomaly("wrong error", Stage.RESULT, witness))
    return anomalies


@planted("jit", "buffer_callback", "B1 H19", functions="barrier_wait")
def forgets_what_a_group_held(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Arrays over its buffers that a function made, and a group of exceptions holds, are gone after its failure."""
    references: dict[str, weakref.ref[Any]] = {}

    def read(buffer: Any) -> None:
        array = np.asarray(buffer)
        references[f"the array of read {len(references)}"] = weakref.ref(array)
        raise KeyError(PLANTED)

    def host(context: Any, out: Any, *parts: Any) -> None:
        errors = []
        for part in parts:
            try:
                read(part)
            except KeyError as error:
                errors.append(error)
        raise ExceptionGroup(PLANTED, errors)

    function = library(bench).buffer_callback(host, NUMBER)
    program = jax.jit(lambda x: function(x, x + 1))
    raised = [error_of(lambda: jax.block_until_ready(program(jnp.float32(1)))) is not None for _ in range(3)]
    gc.collect()
    alive = still_alive(references)
    error_of(bench.implementation.barrier)
    if alive or len(references) != 6 or not all(raised):
        return [
            Anomaly("leak", Stage.EXIT, f"of {len(references)} arrays in groups of exceptions, there are still {alive}")
        ]
    return check_quiet_barrier(bench, "after groups of exceptions")
