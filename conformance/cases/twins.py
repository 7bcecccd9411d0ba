"""Fault cells of two callbacks in one program that differ only in one value: each must use its own value."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import jax
import numpy as np

from ..oracle.checkers import Anomaly
from ..oracle.verdicts import Stage
from ..spec.callbacks import Callback, Runs
from .harness.bench import Bench
from .harness.checks import check_quiet_barrier
from .harness.registry import EVERY_KIND, planted


@dataclass(frozen=True)
class _Labelled:
    """A function that is equal to another one if their labels are equal."""

    label: Any
    seen: list[str]

    def __call__(self, operand: Any) -> Any:
        self.seen.append(repr(self.label))
        return np.asarray(operand) + np.float32(1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Labelled) and self.label == other.label

    def __hash__(self) -> int:
        return hash(self.label)


class _Quoted(str):
    """A text that is equal to another one, and is shown in another way."""

    def __repr__(self) -> str:
        return f"quoted {super().__repr__()}"


class _Alike(str):
    """A text whose hash is that of all texts as long, so that equality decides."""

    def __hash__(self) -> int:
        return len(self)


def _of_label(seen: list[str], label: Any, operand: Any) -> Any:
    seen.append(repr(label))
    return np.asarray(operand) + np.float32(1)


_Show = Callable[[Any], Any]
_Pair = tuple[_Show, _Show]
"""Two callbacks of one operand."""


def _functions(bench: Bench, callback: Callback, seen: list[str]) -> dict[str, tuple[_Pair, list[str]]]:
    """Functions of any callback."""

    def applying(host: Any) -> _Show:
        return lambda x: bench.apply(callback, host, x)

    partials: Any = [functools.partial(_of_label, seen, label) for label in ("one", "other")]
    labelled = [_Labelled(label, seen) for label in ("one", "other")]
    # 1 == True, with the same hash.
    alike = [_Labelled(label, seen) for label in (1, True)]
    return {
        "a value of functools.partial": ((applying(partials[0]), applying(partials[1])), ["'one'", "'other'"]),
        "an attribute": ((applying(labelled[0]), applying(labelled[1])), ["'one'", "'other'"]),
        "an attribute that compares as equal": ((applying(alike[0]), applying(alike[1])), ["1", "True"]),
    }


def _arguments(bench: Bench, callback: Callback, seen: list[str]) -> dict[str, tuple[_Pair, list[str]]]:
    """Arguments of a debug callback that are not arrays."""

    def host(argument: Any) -> None:
        label, _ = argument
        seen.append(repr(label))

    def applying(label: Any) -> _Show:
        return lambda x: bench.apply(callback, host, (label, x), ())[1]

    objects = [frozenset({"one"}), frozenset({"other"})]
    return {
        "a text": ((applying("one"), applying("other")), ["'one'", "'other'"]),
        "an object": ((applying(objects[0]), applying(objects[1])), [repr(objects[0]), repr(objects[1])]),
        "a text and one of another class": ((applying("one"), applying(_Quoted("one"))), ["'one'", "quoted 'one'"]),
        "a text of the same hash": ((applying(_Alike("one")), applying(_Alike("two"))), ["'one'", "'two'"]),
        "a number that is equal and shown in another way": (
            (applying(Decimal("1.0")), applying(Decimal("1.00"))),
            ["Decimal('1.0')", "Decimal('1.00')"],
        ),
        "a text and bytes": ((applying("one"), applying(b"one")), ["'one'", "b'one'"]),
    }


def _prints(bench: Bench) -> dict[str, tuple[_Pair, list[str]]]:
    """The text that a debug print prints beside its values."""
    show = bench.implementation.print_as
    return {
        "the format": ((lambda x: show("one {}", x), lambda x: show("other {}", x)), ["one 3.0", "other 3.0"]),
        "a text by position": (
            (lambda x: show("{} {}", "one", x), lambda x: show("{} {}", "other", x)),
            ["one 3.0", "other 3.0"],
        ),
        "a text by name": (
            (lambda x: show("{a} {x}", a="one", x=x), lambda x: show("{a} {x}", a="other", x=x)),
            ["one 3.0", "other 3.0"],
        ),
    }


def _labels(bench: Bench) -> dict[str, tuple[_Pair, list[str]]]:
    """The text that an `id_print` prints beside its value."""
    show = bench.implementation.print_labelled
    return {
        "a label": (
            (lambda x: show(x, what="one"), lambda x: show(x, what="other")),
            ["what: one 3.", "what: other 3."],
        ),
        "the name of a label": ((lambda x: show(x, one=1), lambda x: show(x, other=1)), ["one: 1 3.", "other: 1 3."]),
        "a label that compares as equal": (
            (lambda x: show(x, what=1), lambda x: show(x, what=True)),
            ["what: 1 3.", "what: True 3."],
        ),
    }


class _Stream(io.StringIO):
    """Each print, on one line, with the name of the stream."""

    def __init__(self, seen: list[str], name: str = "") -> None:
        super().__init__()
        self.seen, self.name = seen, name

    def write(self, text: str) -> int:
        # The end of a line may be a separate write.
        if words := text.split():
            self.seen.append(" ".join([*self.name.split(), *words]))
        return len(text)


@planted("jit", f"{EVERY_KIND} id_print debug_print debug_print_ordered", "H18")
def equal_but_for_values(bench: Bench, callback: Callback) -> list[Anomaly]:
    """The two callbacks in one program, in functions that are compiled separately, and in two programs."""
    anomalies: list[Anomaly] = []
    ways: dict[str, Callable[[_Pair], Callable[[Any], Any]]] = {
        "one program": lambda pair: jax.jit(lambda x: [show(x) for show in pair]),
        "two functions of one program": lambda pair: jax.jit(lambda x: [jax.jit(show)(x) for show in pair]),
        "two programs": lambda pair: lambda x: [jax.jit(show)(x) for show in pair],
        "a loop": lambda pair: jax.jit(
            lambda x: jax.lax.fori_loop(0, 2, lambda _, carry: ([show(x) for show in pair], carry)[1], x)
        ),
    }
    seen: list[str] = []
    if callback.function == "id_print":
        pairs = _labels(bench)
        streams = [_Stream(seen, "one "), _Stream(seen, "other ")]
        show = bench.implementation.print_labelled
        pair = lambda x: show(x, output_stream=streams[0]), lambda x: show(x, output_stream=streams[1])
        pairs["the stream"] = pair, ["one 3.", "other 3."]
    elif callback.function == "debug.print":
        pairs = _prints(bench)
    else:
        pairs = _functions(bench, callback, seen)
        if callback.function == "debug.callback":
            pairs |= _arguments(bench, callback, seen)
    for what, (pair, wanted) in pairs.items():
        for where, program in ways.items():
            if where == "a loop" and callback.runs is Runs.IF_NEEDED:
                # The program does not use the results there.
                continue
            seen.clear()
            with contextlib.redirect_stdout(_Stream(seen)):
                jax.block_until_ready(program(pair)(np.float32(3)))
                anomalies += check_quiet_barrier(bench, f"after two callbacks in {where}")
            times = 2 if where == "a loop" else 1
            if sorted(seen) != sorted(wanted * times):
                witness = f"two that differ in {what}, in {where}, showed {sorted(seen)}, expected {sorted(wanted)}"
                anomalies.append(Anomaly("mistaken", Stage.CALLBACK, f"{witness}, {times} times each"))
    return anomalies
