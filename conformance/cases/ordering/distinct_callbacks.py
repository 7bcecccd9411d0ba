"""Two callbacks in one program that differ in one value only: each uses its own value."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.registry import EVERY_KIND


@dataclass(frozen=True)
class _Labelled:
    """A function that is equal to another one if their labels are equal."""

    label: Any
    seen: list[str]

    def __call__(self, operand: Any) -> Any:
        return _of_label(self.seen, self.label, operand)

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
    seen.append(f"{label!r} {float(operand)}")
    return add_one(operand)


_Show = Callable[[Any], Any]
_Pairs = dict[str, tuple[_Show, _Show, list[str]]]
"""Two callbacks of one number, and what they show before it, by what they differ in."""


def _functions(case: Case, seen: list[str]) -> _Pairs:
    """Functions of any callback."""

    def pair(one: Any, other: Any, *shown: Any) -> tuple[_Show, _Show, list[str]]:
        return lambda x: case.apply(one, x), lambda x: case.apply(other, x), [*shown]

    partials: list[Any] = [functools.partial(_of_label, seen, label) for label in ("one", "other")]
    labelled: list[Any] = [_Labelled(label, seen) for label in ("one", "other")]
    # 1 == True, with the same hash.
    alike: list[Any] = [_Labelled(label, seen) for label in (1, True)]
    return {
        "a value of functools.partial": pair(*partials, "'one'", "'other'"),
        "an attribute": pair(*labelled, "'one'", "'other'"),
        "an attribute that compares as equal": pair(*alike, "1", "True"),
    }


def _arguments(case: Case, seen: list[str]) -> _Pairs:
    """Arguments of a debug callback that are not arrays."""

    def host(argument: Any) -> None:
        _of_label(seen, *argument)

    def pair(one: Any, other: Any) -> tuple[_Show, _Show, list[str]]:
        first, second = (lambda x, label=label: case.apply(host, (label, x), ())[1] for label in (one, other))
        return first, second, [repr(one), repr(other)]

    return {
        "a text": pair("one", "other"),
        "an object": pair(frozenset({"one"}), frozenset({"other"})),
        "a text and one of another class": pair("one", _Quoted("one")),
        "a text of the same hash": pair(_Alike("one"), _Alike("two")),
        "a number that is equal and shown in another way": pair(Decimal("1.0"), Decimal("1.00")),
        "a text and bytes": pair("one", b"one"),
    }


def _prints(show: Callable[..., Any]) -> _Pairs:
    """The text that a debug print prints beside its values."""
    shown = ["one", "other"]
    return {
        "the format": (lambda x: show("one {}", x), lambda x: show("other {}", x), shown),
        "a text by position": (lambda x: show("{} {}", "one", x), lambda x: show("{} {}", "other", x), shown),
        "a text by name": (lambda x: show("{a} {x}", a="one", x=x), lambda x: show("{a} {x}", a="other", x=x), shown),
    }


def _labels(show: Callable[..., Any], streams: list[_Stream]) -> _Pairs:
    """The text that an `id_print` prints beside its value, and where."""
    one, other = streams
    return {
        "a label": (lambda x: show(x, what="one"), lambda x: show(x, what="other"), ["what: one", "what: other"]),
        "the name of a label": (lambda x: show(x, one=1), lambda x: show(x, other=1), ["one: 1", "other: 1"]),
        "a label that compares as equal": (
            lambda x: show(x, what=1),
            lambda x: show(x, what=True),
            ["what: 1", "what: True"],
        ),
        "the stream": (lambda x: show(x, output_stream=one), lambda x: show(x, output_stream=other), ["one", "other"]),
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


def _of_number(place: int, show: _Show) -> _Show:
    return lambda xs: show(xs[place])


def _each(shows: Sequence[_Show]) -> _Show:
    return lambda xs: [show(xs) for show in shows]


_WAYS: dict[str, Callable[[list[_Show]], _Show]] = {
    "one program": lambda shows: jax.jit(_each(shows)),
    "two functions of one program": lambda shows: jax.jit(_each([jax.jit(show) for show in shows])),
    "two programs": lambda shows: _each([jax.jit(show) for show in shows]),
    "a loop": lambda shows: jax.jit(
        lambda xs: jax.lax.fori_loop(0, 2, lambda _, carry: (_each(shows)(carry), carry)[1], xs)
    ),
}


@case("jit", f"{EVERY_KIND} id_print debug_print debug_print_ordered", "H18")
def equal_but_for_values(case: Case) -> None:
    """Each of two callbacks uses its own value: in one program, in functions compiled apart, and in two programs."""
    seen: list[str] = []
    if case.callback.function == "id_print":
        pairs = _labels(case.implementation.print_labelled, [_Stream(seen, "one "), _Stream(seen, "other ")])
    elif case.callback.function == "debug.print":
        pairs = _prints(case.implementation.print_as)
    else:
        pairs = _functions(case, seen)
        if case.callback.function == "debug.callback":
            pairs |= _arguments(case, seen)
    # Each pair has a number of its own, by which its words are known.
    shows = [_of_number(place, show) for place, pair in enumerate(pairs.values()) for show in pair[:2]]
    for where, program in _WAYS.items():
        if where == "a loop" and case.callback.runs is Runs.IF_NEEDED:
            # The program does not use the results there.
            continue
        seen.clear()
        with contextlib.redirect_stdout(_Stream(seen)):
            jax.block_until_ready(program(shows)(list(np.arange(len(pairs), dtype=np.float32))))
            case.barrier()
        times = 2 if where == "a loop" else 1
        case.same("mistaken", Stage.CALLBACK, len(seen), 2 * times * len(pairs), f"the number of calls, in {where}")
        lines = [line.rpartition(" ") for line in seen]
        for place, (what, (_, _, shown)) in enumerate(pairs.items()):
            found = sorted(text for text, _, number in lines if number in (f"{place}.", f"{place}.0"))
            expected = sorted(shown * times)
            case.same("mistaken", Stage.CALLBACK, found, expected, f"two that differ in {what}, in {where}")


@case("jit", EVERY_KIND, "H18")
def equal_functions_outside_jit(case: Case) -> None:
    """Outside jit, each callback calls its own function, also if one compares as equal to an earlier one."""
    seen: list[str] = []
    for label in (1, True):
        jax.block_until_ready(case.apply(_Labelled(label, seen), np.float32(0)))
    case.barrier()
    case.same("mistaken", Stage.CALLBACK, sorted(seen), ["1 0.0", "True 0.0"], "functions that compare as equal")
