"""Fault cells of the texts that prints write, to the letter; a campaign of mutants found nobody who reads them."""

from __future__ import annotations

import contextlib
import io
import threading
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from .bench import Bench
from .fault import planted

LONG = [np.full(3, 0.5 + number, np.float32) for number in range(8)]
"""As a list, longer than a line of 80 characters: an item a line."""

ITEMS = [f"[{number}.5 {number}.5 {number}.5]" for number in range(8)]

VALUES: dict[str, tuple[Any, str]] = {
    "a tuple": ((np.float32(3), np.int32(9)), "( 3. 9 )"),
    "a list in a dict": ({"b": np.float32(2), "a": [np.float32(1)]}, "{ a=[ 1. ] b=2. }"),
    "a dict whose keys have no order": ({"b": np.float32(2), 1: np.float32(1)}, "{ b=2. 1=1. }"),
    "nothing in a tuple": ((None, np.float32(1)), "( None 1. )"),
    "a long list": (LONG, "[ " + "\n  ".join(ITEMS) + " ]"),
    "a large array": (np.zeros(1100, np.float32), "[0. 0. 0. ... 0. 0. 0.]"),
}


class _Writes:
    """A stream that keeps each write apart."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        self.texts.append(text)


def _differences(what: str, seen: object, wanted: object) -> list[Anomaly]:
    if seen == wanted:
        return []
    return [Anomaly("value", Stage.CALLBACK, f"{what} was printed as {seen!r}, expected {wanted!r}")]


@planted("jit", "id_print", "H2")
def prints_exactly(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H2: containers in their brackets, labels in their order, and each print is one write."""
    anomalies = []
    for what, (value, wanted) in VALUES.items():
        stream = _Writes()

        def show(_: Any, value: Any = value, stream: Any = stream) -> None:
            bench.implementation.print_labelled(value, output_stream=stream)

        # The value is no operand of the program: JAX itself refuses dicts whose keys have no order there.
        bench.compile(show)(0)
        bench.implementation.barrier()
        anomalies += _differences(what, stream.texts, [f"{wanted}\n"])
    stream = _Writes()
    labels: dict[str, Any] = {"what": "x", "after": 1, "output_stream": stream}
    bench.compile(lambda x: bench.implementation.print_labelled(x, tap_with_device=True, **labels))(np.int32(7))
    bench.implementation.barrier()
    anomalies += _differences(
        "a value with labels", stream.texts, [f"after: 1 device: {bench.devices[0]} what: x\n7\n"]
    )
    few = _Writes()
    bench.compile(lambda x: bench.implementation.print_labelled(x, threshold=2, output_stream=few))(np.arange(9))
    bench.implementation.barrier()
    return anomalies + _differences("an array above its threshold", few.texts, ["[0 1 2 ... 6 7 8]\n"])


@planted("jit", "id_print", "H2")
def prints_to_standard_output(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H2: without a stream, the text is on the standard output of the moment when it is printed."""
    written = io.StringIO()
    compiled = bench.compile(lambda x: bench.implementation.print_labelled(x, what="x"))
    with contextlib.redirect_stdout(written):
        compiled(np.int32(5))
        bench.implementation.barrier()
    return _differences("a value without a stream", written.getvalue(), "what: x\n5\n")


class _Interrupted(_Writes):
    """A stream that is in the middle of its first write until another thread has had the time for a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.inside = 0
        self.mixed = False

    def write(self, text: str) -> None:
        self.mixed |= self.inside > 0
        self.inside += 1
        self.begun.set()
        # Long enough for a print that does not wait for this one, and no more than that.
        threading.Event().wait(0.2 if not self.texts else 0.0)
        self.texts.append(text)
        self.inside -= 1


@planted("jit", "id_print", "H2", minimum_devices=2)
def prints_of_threads_stay_apart(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H2: while one device prints, another one's print to the same stream waits."""
    stream = _Interrupted()
    compiled = jax.jit(lambda x: bench.implementation.print_labelled(x, output_stream=stream))
    first, second = (jax.device_put(np.int32(number), bench.devices[number]) for number in range(2))
    compiled(first)
    stream.begun.wait(10)
    compiled(second)
    bench.implementation.barrier()
    anomalies = _differences("each of two values", sorted(stream.texts), ["0\n", "1\n"])
    if stream.mixed:
        anomalies.append(Anomaly("overlap", Stage.CALLBACK, "a print began while another one wrote to the same stream"))
    return anomalies


@planted("jit", "id_print", "H18")
def equal_labels(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H18: prints of equal labels, whatever their order, make equal programs, and others do not."""
    stream = _Writes()

    def program_of(**labels: Any) -> Any:
        traced = jax.make_jaxpr(lambda x: bench.implementation.print_labelled(x, output_stream=stream, **labels))
        return tuple(tuple(sorted(equation.params.items())) for equation in traced(np.float32(1)).jaxpr.eqns)

    first, again, other = program_of(a=1, b="x"), program_of(b="x", a=1), program_of(a=2, b="x")
    # JAX's caches look them up by their hash.
    if again in {first} and other not in {first}:
        return []
    words = ("others", "the same")
    witness = f"equal prints make {words[again in {first}]} programs, and different ones {words[other in {first}]}"
    return [Anomaly("equality", Stage.TRACE, witness)]


DEBUG_PRINTS: dict[str, tuple[dict[str, Any], str]] = {
    "{what}: {x}": ({"what": "a text"}, "a text: 2.5"),
    "{what:>4} {x:.2f}": ({"what": "ab"}, "  ab 2.50"),
    "{row[1]} {x}": ({"row": np.arange(3, dtype=np.float32)}, "1.0 2.5"),
    "{rows} {x}": ({"rows": [np.arange(3, dtype=np.float32)]}, "[Array([0., 1., 2.], dtype=float32)] 2.5"),
}
"""Formats, their values beside `x`, and the line."""


@planted("jit", "debug_print", "X4")
def debug_prints_exactly(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: values that are no arrays, parts of arrays and of keys, and arrays in a list."""
    keys = jax.random.split(jax.random.key(3), 2)
    formats = {**DEBUG_PRINTS, "{keys[1]} {x}": ({"keys": keys}, f"{jax.random.key_data(keys)[1]} 2.5")}
    anomalies = []
    for text, (values, wanted) in formats.items():
        written = io.StringIO()

        def show(x: Any, text: str = text, values: dict[str, Any] = values) -> None:
            bench.implementation.print_as(text, x=x, **values)

        with contextlib.redirect_stdout(written):
            try:
                bench.compile(show)(np.float32(2.5))
                bench.implementation.barrier()
            except Exception as error:
                anomalies.append(Anomaly("error", stage_of(error), f"{text!r}: {summary(error)}"))
                continue
        anomalies += _differences(f"{text!r}", written.getvalue(), f"{wanted}\n")
    return anomalies
