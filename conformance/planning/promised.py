"""The table of promises and kinds of callback: cells of each pair, or the reason why there are none, or a hole."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..spec.callbacks import Callback
from ..spec.external_callbacks import ALL_CALLBACKS, callback_named, functions_of
from ..spec.promises import A_MIXTURE, OPTIONS, PROMISES, REASONS, TESTS_ALONE, Reason, is_about
from .cells import Cell

HOLE = "HOLE"

_NAMES = {callback.name for callback in ALL_CALLBACKS}


@dataclass(frozen=True)
class PromiseTable:
    promises: tuple[str, ...]
    kinds: tuple[Callback, ...]
    counts: Counter[tuple[str, str]]
    """The cells of each promise and kind."""
    reasons: dict[tuple[str, str], str]
    """Of the pairs without cells."""
    stale: tuple[str, ...]
    """Reasons for pairs that have cells, in words."""

    @property
    def holes(self) -> tuple[tuple[str, str], ...]:
        pairs = itertools.product(self.promises, (kind.name for kind in self.kinds))
        return tuple(pair for pair in pairs if not self.counts[pair] and pair not in self.reasons)


def promise_table(
    cells: Iterable[Cell],
    promises: Sequence[str] = PROMISES,
    kinds: Sequence[Callback] = tuple(ALL_CALLBACKS),
    reasons: Sequence[Reason] = REASONS,
) -> PromiseTable:
    counts = Counter((promise, cell.callback_name) for cell in cells for promise in cell.promises)
    found: dict[tuple[str, str], str] = {}
    stale = []
    for promise, kind in itertools.product(promises, kinds):
        pair = promise, kind.name
        own = [one.words for one in reasons if _has(one, promise, kind)]
        if counts[pair]:
            stale += [f"{promise} has {counts[pair]} cells of {kind.name}, and a reason for none: {one}" for one in own]
        elif words := _why_none(counts, promise, kind, own):
            found[pair] = words
    return PromiseTable(tuple(promises), tuple(kinds), counts, found, tuple(stale))


def _has(reason: Reason, promise: str, kind: Callback) -> bool:
    if promise not in reason.promises.split():
        return False
    # Some functions have the name of a callback without options, and that alone is meant then.
    return any(kind.name == word or (word not in _NAMES and kind.function == word) for word in reason.kinds.split())


def _why_none(counts: Counter[tuple[str, str]], promise: str, kind: Callback, own: Sequence[str]) -> str | None:
    if not is_about(promise, kind.function, functions_of(kind)):
        return "it is about other functions"
    if promise in TESTS_ALONE:
        return TESTS_ALONE[promise]
    if own:
        return own[0]
    if kind.parts:
        return A_MIXTURE
    if kind.name not in OPTIONS:
        return None
    of, words = OPTIONS[kind.name]
    if counts[promise, of]:
        return f"cells of {of} test it: {words}"
    # What does not apply without the option does not apply with it.
    return next((one.words for one in REASONS if _has(one, promise, callback_named(of))), None)


def show(table: PromiseTable) -> str:
    """The counts with a row for each kind, then each reason with its pairs, then what is wrong."""
    width = max(len(kind.name) for kind in table.kinds)
    lines = [" " * width + "".join(f"{promise:>5}" for promise in table.promises)]
    for kind in table.kinds:
        marks = [_mark(table, (promise, kind.name)) for promise in table.promises]
        lines.append(f"{kind.name:{width}}" + "".join(f"{mark:>5}" for mark in marks))
    lines += ["", "Numbers are cells, a point is a pair with a reason:"]
    by_reason: dict[str, dict[str, list[str]]] = {}
    for (promise, name), words in table.reasons.items():
        by_reason.setdefault(words, {}).setdefault(promise, []).append(name)
    for words, promises in by_reason.items():
        lines.append(f"  {words}")
        for promise, names in promises.items():
            lines.append(f"    {promise}: {'all' if len(names) == len(table.kinds) else ' '.join(names)}")
    lines += [f"HOLE: no cell of {name} for {promise}, and no reason" for promise, name in table.holes]
    lines += [f"STALE: {words}" for words in table.stale]
    return "\n".join(lines)


def _mark(table: PromiseTable, pair: tuple[str, str]) -> str:
    if table.counts[pair]:
        return str(table.counts[pair])
    return "." if pair in table.reasons else HOLE
