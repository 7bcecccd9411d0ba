"""Fault cells of what an error says of a function's exception: its first line, the advice in it, and its cause."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of
from .harness.registry import EVERY_KIND, planted

OF_ARRAYS = ("block_until_ready", "devices", "sharding", "at", "addressable_shards", "is_fully_replicated", "weak_type")
"""Attributes that an array of JAX has, and one of NumPy has not."""

OPERANDS: dict[str, Callable[[Any], Any]] = {
    "the operand": lambda operand: np.asarray(operand),
    "an item of the operand": lambda operand: np.asarray(operand)[0],
    "a sum of the operand": lambda operand: np.asarray(operand).sum(),
}

ADVICE = "hostcb.jax_arrays"
RUNS = 3


@planted("jit", "id_tap call pure_callback io_callback debug_callback", "H32", functions="barrier_wait")
def advises_of_arrays(bench: Bench, callback: Callback) -> list[Anomaly]:
    """An array, and a number of an array, that lacks what `jax.Array` has: the error names the remedy, once."""
    anomalies: list[Anomaly] = []
    reads: tuple[Callable[[Any], Any], str] = operator.attrgetter("at"), "at"

    def host(operand: Any) -> Any:
        take, name = reads
        getattr(take(operand), name)
        return np.asarray(operand)

    program = bench.applying(callback, host)
    for what, take in OPERANDS.items():
        for name in (*OF_ARRAYS, "of_no_array"):
            reads = take, name
            error_of(lambda: jax.block_until_ready(program(bench.operand)))
            told = str(error_of(bench.implementation.barrier))
            # Of an attribute that no array has there is nothing to advise.
            wanted = int(name != "of_no_array")
            if name not in told or min(told.count(ADVICE), 1) != wanted:
                witness = f"{name} of {what}: the barrier's error must name {ADVICE} ({wanted}): {told[:300]}"
                anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    kept: list[AttributeError] = []

    def raises_again(operand: Any) -> Any:
        try:
            np.asarray(operand).block_until_ready()  # type: ignore[attr-defined]
        except AttributeError as error:
            kept.append(error)
        raise kept[0]

    program = bench.applying(callback, raises_again)
    for _ in range(RUNS):
        error_of(lambda: jax.block_until_ready(program(bench.operand)))
        told = str(error_of(bench.implementation.barrier))
    notes = [note for note in getattr(kept[0], "__notes__", ()) if ADVICE in note]
    if len(notes) != 1:
        witness = f"after {RUNS} runs that raised one exception, it has the notes {notes}, expected one"
        anomalies.append(Anomaly("poor error", Stage.CALLBACK, witness))
    return anomalies + check_quiet_barrier(bench, "after errors with advice")


TEXTS = (
    f"\n  {PLANTED}\n",
    f"\r\n\t{PLANTED}",
    f"\n\n \n{PLANTED}\nand more",
    f"  {PLANTED}",
    f"{PLANTED}\n",
    f"\v\f{PLANTED}",
)
"""Texts of exceptions that do not begin with a word, or do not end with one."""


@planted("jit", EVERY_KIND, "H32", functions="barrier_wait")
def first_line_of_any_text(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The first line says what was raised, wherever in its text an exception says it; so does each failure's."""
    text = ""

    def host(operand: Any) -> Any:
        raise OSError(text)

    program = bench.applying(callback, host)
    anomalies: list[Anomaly] = []
    for text in TEXTS:
        error = error_of(lambda: jax.block_until_ready(program(bench.operand)))
        reported: Any = error_of(bench.implementation.barrier)
        headlines = [failure.headline for failure in getattr(reported, "failures", ())]
        lines = [line for each in (error, reported) if each is not None for line in str(each).splitlines()]
        said = [line for line in (*lines, *headlines) if f"{callback.function}: " in line and "raised OSError" in line]
        if not headlines or not said or not all(f"OSError: {PLANTED}" in line for line in said):
            witness = f"of the text {text!r} the first lines are {said or headlines}"
            anomalies.append(Anomaly("poor error", Stage.BARRIER, witness))
    return anomalies


class _PlantedError(Exception):
    """The function's own."""


@planted(
    "jit", "call pure_callback io_callback io_callback_ordered debug_callback", "H15 H32", functions="barrier_wait"
)
def causes_are_the_functions(bench: Bench, callback: Callback) -> list[Anomaly]:
    """Outside jit and in it the cause of an error is what the function raised, and its context no error of hostcb."""

    def host(operand: Any) -> Any:
        raise _PlantedError(PLANTED)

    def apply(x: Any) -> Any:
        return bench.apply(callback, host, x)

    anomalies: list[Anomaly] = []
    operand = jnp.asarray(bench.operand)
    everywhere = jax.device_put(operand, jax.sharding.NamedSharding(bench.mesh, jax.sharding.PartitionSpec()))
    for what, run, given in (
        ("outside jit", apply, operand),
        ("outside jit, on a mesh", apply, everywhere),
        ("in jit", jax.jit(apply), operand),
    ):
        error = error_of(lambda run=run, given=given: jax.block_until_ready(run(given)))  # type: ignore[misc]
        error_of(bench.implementation.barrier)
        if error is None:
            anomalies.append(Anomaly("swallowed error", Stage.DISPATCH, f"{what} a failure came to a result"))
            continue
        chain = [error.__cause__, error.__context__]
        foreign = [each for each in chain if each is not None and type(each).__module__.startswith("hostcb")]
        if foreign or not (error.__cause__ is None or isinstance(error.__cause__, _PlantedError)):
            witness = f"{what} {summary(error)} has the cause and the context {chain}"
            anomalies.append(Anomaly("wrong error", Stage.DISPATCH, witness))
        # A mesh of one device is run by the calling thread, and others may be.
        if error.__cause__ is None and what != "outside jit, on a mesh":
            anomalies.append(Anomaly("wrong error", Stage.DISPATCH, f"{what} {summary(error)} has no cause"))
    return anomalies + check_quiet_barrier(bench, "after errors with causes")
