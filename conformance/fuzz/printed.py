"""The values in printed text, which becomes events again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..oracle.history import Recorder
from ..oracle.literals import literal

FORMAT = "conformance: {}: {}"
"""What `PrintedCallbacks` takes for a print of the program: its label and its values."""

BRACKETS: dict[type, tuple[str, str]] = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}
NUMBER = re.compile(r"-?[\d.]+(?:e[-+]\d+)?")


def printed_array(text: str) -> Any:
    """The array of numbers that NumPy wrote; whole numbers are int32."""
    with_commas = re.sub(r"(?<=[\d.\]])\s+(?=[-\d\[])", ", ", text.strip())
    return np.asarray(literal(with_commas), np.float32 if "." in text else np.int32)


def printed_values(text: str) -> list[Any]:
    """The values that `debug.print` wrote, separated by semicolons."""
    return [printed_array(one) for one in text.split(";")]


class Reader:
    def __init__(self, text: str) -> None:
        self.text = text.strip()

    def take(self, mark: str) -> None:
        if not self.text.startswith(mark):
            raise ValueError(f"the printed text has no {mark!r} before {self.text!r}")
        self.text = self.text.removeprefix(mark).lstrip()

    def value(self) -> Any:
        end, depth = 0, 0
        if self.text.startswith("["):
            while not end or depth:
                depth += {"[": 1, "]": -1}.get(self.text[end], 0)
                end += 1
        elif found := NUMBER.match(self.text):
            end = found.end()
        else:
            raise ValueError(f"the printed text has no value at {self.text!r}")
        number, self.text = self.text[:end], self.text[end:].lstrip()
        return printed_array(number)


def values_of_id_print(text: str, tree: type, count: int) -> list[Any]:
    """The device's number, and the leaves of a tuple, a list or a dict, as `id_print` wrote them (H2)."""
    reader = Reader(text)
    reader.take("(")
    values = [reader.value()]
    opening, closing = BRACKETS[tree]
    reader.take(opening)
    for place in range(count):
        if tree is dict:
            reader.take(f"{'abc'[place]}=")
        values.append(reader.value())
    reader.take(closing)
    reader.take(")")
    if reader.text:
        raise ValueError(f"the printed text goes on: {reader.text!r}")
    return values


@dataclass(frozen=True)
class PrintStream:
    """Records what `id_print` writes. Equal ones make equal programs."""

    label: int
    recorder: Recorder = field(repr=False)
    tree: type
    count: int

    def write(self, text: str) -> None:
        heading, _, body = text.partition("\n")
        transforms = re.search(r"transforms: (\[.*\])", heading)
        if f"what: {self.label}" not in heading:
            raise ValueError(f"the heading lacks its label: {heading!r}")
        values = values_of_id_print(body, self.tree, self.count)
        told = tuple(literal(transforms[1])) if transforms else ()
        with self.recorder.callback(str(self.label), values, told):
            pass
