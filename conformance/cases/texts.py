"""Fault cells of the texts that prints write, to the letter; a campaign of mutants found nobody who reads them."""

from __future__ import annotations

import collections
import contextlib
import io
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.stages import stage_of, summary
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback
from ..spec.thresholds import THRESHOLDS
from .harness.bench import Bench
from .harness.checks import PLANTED, check_quiet_barrier, error_of, flag, unequal
from .harness.registry import planted
from .traces import library

LONG = [np.full(3, 0.5 + number, np.float32) for number in range(8)]
"""As a list, longer than a line of 80 characters: an item a line."""

ITEMS = [f"[{number}.5 {number}.5 {number}.5]" for number in range(8)]

AS_LONG_AS_A_LINE = [*range(29)]
"""As a list, 80 characters: the most for one line."""

LONGER = [10, *AS_LONG_AS_A_LINE[1:]]


class Pair(NamedTuple):
    one: Any
    other: Any


VALUES: dict[str, tuple[Any, str]] = {
    "a tuple": ((np.float32(3), np.int32(9)), "( 3. 9 )"),
    "a list in a dict": ({"b": np.float32(2), "a": [np.float32(1)]}, "{ a=[ 1. ] b=2. }"),
    "a dict of another class": (collections.OrderedDict(b=np.float32(2), a=np.float32(1)), "{ a=1. b=2. }"),
    "a dict with numbers as keys": ({10: np.float32(1), 9: np.float32(2)}, "{ 9=2. 10=1. }"),
    "a named tuple": (Pair(np.float32(3), np.int32(9)), "( 3. 9 )"),
    "a dict whose keys have no order": ({"b": np.float32(2), 1: np.float32(1)}, "{ b=2. 1=1. }"),
    "two such dicts, one in the other": (
        {"b": {2: np.float32(3), "a": np.float32(4)}, 1: np.float32(1)},
        "{ b={ 2=3. a=4. } 1=1. }",
    ),
    "nothing in a tuple": ((None, np.float32(1)), "( None 1. )"),
    "a long list": (LONG, "[ " + "\n  ".join(ITEMS) + " ]"),
    "a list as long as a line": (AS_LONG_AS_A_LINE, f"[ {' '.join(map(str, AS_LONG_AS_A_LINE))} ]"),
    "a list longer by a character": (LONGER, "[ " + "\n  ".join(map(str, LONGER)) + " ]"),
    "a large array": (np.zeros(1100, np.float32), "[0. 0. 0. ... 0. 0. 0.]"),
}


class _Writes:
    """A stream that keeps each write apart; without any it is false, as a list is."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __len__(self) -> int:
        return len(self.texts)

    def write(self, text: str) -> None:
        self.texts.append(text)


_differences = partial(unequal, "value", Stage.CALLBACK)


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
    few, summary_of_nine = _Writes(), "[0 1 2 ... 6 7 8]"
    for threshold, containers, wanted in (
        (2, lambda x: x, summary_of_nine),
        (0, lambda x: x, summary_of_nine),
        (2, lambda x: {"a": [(x,)]}, f"{{ a=[ ( {summary_of_nine} ) ] }}"),
    ):

        def show_few(x: Any, containers: Any = containers, threshold: int = threshold) -> None:
            bench.implementation.print_labelled(containers(x), threshold=threshold, output_stream=few)

        few.texts.clear()
        bench.compile(show_few)(np.arange(9))
        bench.implementation.barrier()
        anomalies += _differences("an array above its threshold", few.texts, [f"{wanted}\n"])
    return anomalies


@planted("jit", "id_print", "H2")
def prints_and_returns(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H2: a print returns its value, or what is given as its result, which is not printed."""
    stream = _Writes()

    def show(x: Any, **options: Any) -> Any:
        return bench.implementation.print_labelled({"a": x}, output_stream=stream, **options)

    anomalies = []
    for run in (lambda function, x: function(x), lambda function, x: jax.jit(function)(x)):
        stream.texts.clear()
        found = [run(show, np.int32(7)), run(lambda x: show(x, result=(x + 1, x + 2)), np.int32(7))]
        bench.implementation.barrier()
        anomalies += _differences("a value with a result", stream.texts, ["{ a=7 }\n"] * 2)
        seen, wanted = jax.tree.map(int, found), [{"a": 7}, (8, 9)]
        if seen != wanted:
            anomalies.append(Anomaly("result", Stage.RESULT, f"prints returned {seen}, expected {wanted}"))
    # Outside jit, JAX takes a dict of this class, whatever its keys are.
    given = collections.OrderedDict([("b", np.int32(1)), (2, np.int32(3))])
    returned = bench.implementation.print_labelled(given, output_stream=stream)
    bench.implementation.barrier()
    if (type(returned), [*returned]) != (collections.OrderedDict, ["b", 2]):
        anomalies.append(Anomaly("result", Stage.RESULT, f"a print of {given} returned {returned!r}"))
    return anomalies


@planted("jit", "id_print", "H2 H16")
def prints_of_derivatives(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H2, H16: a transform without parameters is printed as its name, and one with parameters as a pair."""
    stream = _Writes()

    def cubed(x: Any) -> Any:
        return bench.implementation.print_labelled(x * x, what="square", output_stream=stream) * x

    with warnings.catch_warnings(record=True) as warned, flag("jax_host_callback_ad_transforms"):
        warnings.simplefilter("always")
        for program in (lambda x: jax.jvp(cubed, (x,), (1.0,)), jax.grad(cubed)):
            jax.block_until_ready(jax.jit(program)(3.0))
            bench.implementation.barrier()
        two = np.array([1, 3], np.float32)
        jax.block_until_ready(jax.jit(jax.vmap(lambda x: jax.jvp(cubed, (x,), (np.float32(1),))))(two))
        bench.implementation.barrier()
    batch = "('batch', {'batch_dims': (0, 0)})"
    wanted = [
        "transforms: ['jvp'] what: square\n( 9. 6. )\n",
        "what: square\n9.\n",
        "transforms: ['jvp', 'transpose'] what: square\n3.\n",
        f"transforms: ['jvp', {batch}] what: square\n( [1. 9.] [2. 6.] )\n",
    ]
    anomalies = _differences("a square, with its derivatives", stream.texts, wanted)
    if not any(issubclass(each.category, FutureWarning) for each in warned):
        anomalies.append(Anomaly("swallowed error", Stage.TRACE, "no FutureWarning told of the flag, which will go"))
    return anomalies


@planted("jit", "id_print", "H2")
def prints_to_standard_output(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H2: without a stream, the text is one write to the standard output of the moment when it is printed."""
    written: Any = _Writes()
    compiled = bench.compile(lambda x: bench.implementation.print_labelled(x, what="x"))
    with contextlib.redirect_stdout(written):
        compiled(np.int32(5))
        bench.implementation.barrier()
    return _differences("a value without a stream", written.texts, ["what: x\n5\n"])


class _Answering(_Writes):
    """A stream that prints the length of each text to another one."""

    def __init__(self, answer: Callable[[int], object]) -> None:
        super().__init__()
        self.answer = answer

    def write(self, text: str) -> None:
        super().write(text)
        self.answer(len(text))


@planted("jit", "id_print", "H2", isolated=True)
def prints_inside_a_write(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H2: a stream's `write` may itself print, to another stream, in the thread that prints and while it waits."""
    lengths = _Writes()
    stream = _Answering(lambda length: bench.implementation.print_labelled(np.int32(length), output_stream=lengths))
    compiled = bench.compile(lambda x: bench.implementation.print_labelled(x, output_stream=stream))
    for number in (7, 77):
        jax.block_until_ready(compiled(np.int32(number)))
    anomalies = check_quiet_barrier(bench, "after prints inside of prints")
    return anomalies + _differences(
        "each value and its length", stream.texts + lengths.texts, ["7\n", "77\n", "2\n", "3\n"]
    )


class _Full:
    """A stream to which nothing can be written."""

    def write(self, text: str) -> None:
        raise OSError(PLANTED)


@planted("jit", "id_print", "H14 H32")
def names_a_print_by_its_labels(bench: Bench, callback: Callback) -> list[Anomaly]:
    """H32: the report of a print that failed names it by its labels and their values."""
    compiled = bench.compile(
        lambda x: bench.implementation.print_labelled(x, what="loss", step=3, output_stream=_Full())
    )
    error_of(lambda: jax.block_until_ready(compiled(np.int32(5))))
    reported = error_of(bench.implementation.barrier)
    if PLANTED in str(reported) and "step: 3 what: loss" in str(reported):
        return []
    return [Anomaly("poor error", Stage.BARRIER, f"the report of a failed print with two labels is {reported!r}")]


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
    "{empty} {x}": ({"empty": [np.zeros((2, 0), np.int32)]}, "[Array([], shape=(2, 0), dtype=int32)] 2.5"),
    # With its type, as long as a line of 75 characters.
    "{line} {x}": ({"line": [np.ones(20, np.int32)]}, f"[Array([{', '.join('1' * 20)}], dtype=int32)] 2.5"),
    # JAX writes the type of a longer one as if it were on the next line.
    "{longer} {x}": ({"longer": [np.ones(21, np.int32)]}, f"[Array([{', '.join('1' * 21)}],      dtype=int32)] 2.5"),
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


@planted("jit", "call_print_and_tap", "X4", crosses=("block",))
def debug_prints_large_arrays(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: in a list, an array of 1 MiB is printed as its shape, as in newer releases of JAX; a smaller one is not."""
    anomalies = []
    count = THRESHOLDS["block"].value // np.dtype(np.float32).itemsize
    for size, array in (
        (count - 1, "Array([0., 0., 0., ..., 0., 0., 0.], dtype=float32)"),
        (count, f"Array(shape=({count},), dtype=float32)"),
    ):
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            bench.compile(lambda x: library(bench).debug.print("{}", [x]))(np.zeros(size, np.float32))
            bench.implementation.barrier()
        anomalies += _differences(f"an array of {size} elements", written.getvalue(), f"[{array}]\n")
    return anomalies


@planted("jit", "debug_print", "X4")
def prints_with_options_of_the_trace(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: NumPy's print options are those of the program's trace, and not those of the moment when it prints."""
    written = io.StringIO()
    third = np.array([1 / 3, 2 / 3], np.float32)
    with np.printoptions(precision=2):
        compiled = jax.jit(lambda x: bench.implementation.print_as("{} {}", x, [x])).lower(third).compile()
    with contextlib.redirect_stdout(written):
        compiled(third)
        bench.implementation.barrier()
    anomalies = _differences("a third", written.getvalue(), "[0.33 0.67] [Array([0.33, 0.67], dtype=float32)]\n")
    return anomalies + check_quiet_barrier(bench, "after options")


@planted("jit", "call_print_and_tap", "X4")
def prints_with_options_of_the_line(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: where the options of a print and its arguments are two calls, NumPy's options are those of the second."""
    written = io.StringIO()
    show = library(bench).debug.print(ordered=True)
    with np.printoptions(precision=2):
        compiled = jax.jit(lambda x: show("{}", x)).lower(np.array([1 / 3, 2 / 3], np.float32)).compile()
    with contextlib.redirect_stdout(written):
        compiled(np.array([1 / 3, 2 / 3], np.float32))
        bench.implementation.barrier()
    return _differences("a third", written.getvalue(), "[0.33 0.67]\n")


@planted("jit", "id_print debug_print", "H2 H14 X4", functions="barrier_wait", isolated=True)
def prints_without_a_console(bench: Bench, callback: Callback) -> list[Anomaly]:
    """A program without standard output (`sys.stdout` is None) prints nothing, and no print is a failure."""
    hostcb = library(bench)
    ways: dict[str, Callable[[Any], Any]] = {
        "id_print": lambda x: hostcb.id_print(x),
        "debug.print": lambda x: hostcb.debug.print("{}", x),
        "debug.print, ordered": lambda x: hostcb.debug.print("{}", x, ordered=True),
    }
    anomalies = []
    before, sys.stdout = sys.stdout, None
    try:
        for what, way in ways.items():
            for where, run in (("in jit", jax.jit(lambda x, way=way: (way(x), x)[1])), ("outside of jit", way)):
                error = error_of(lambda run=run: [jax.block_until_ready(run(jnp.ones(2))), 0][1])  # type: ignore[misc]
                error = error or error_of(bench.implementation.barrier)
                if error is not None:
                    anomalies.append(Anomaly("error", Stage.CALLBACK, f"{what} {where}: {summary(error)}"))
    finally:
        sys.stdout = before
    return anomalies


@planted("pjit", "debug_print", "X4", minimum_devices=2)
def prints_each_part(bench: Bench, callback: Callback) -> list[Anomaly]:
    """X4: `partitioned=True` prints the part of each device, and without it the whole is printed once."""
    anomalies: list[Anomaly] = []
    operand = jax.device_put(np.arange(len(bench.devices), dtype=np.int32), bench.split)
    whole = f"{np.arange(len(bench.devices))}"
    for partitioned, wanted in ((True, sorted(f"[{n}]" for n in range(len(bench.devices)))), (False, [whole])):
        written = io.StringIO()
        program = jax.jit(lambda x, p=partitioned: bench.implementation.print_as("{}", x, partitioned=p))
        with contextlib.redirect_stdout(written):
            program(operand)
            bench.implementation.barrier()
        found = sorted(written.getvalue().splitlines())
        anomalies += _differences(f"a value with partitioned={partitioned}", found, wanted)
    return anomalies
