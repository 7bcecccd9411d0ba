"""What messages call a host function, and what becomes of printed text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from ..oracle.history import Recorder
from ..oracle.literals import literal


class Sited:
    """A host function that messages name by its site: a reader does not know the classes of the suite."""

    site: str

    def __repr__(self) -> str:
        return f"callback {self.site!r}"


def parse_array(text: str) -> Any:
    """The float32 array that NumPy wrote."""
    with_commas = re.sub(r"(?<=[\d.\]])\s+(?=[-\d\[])", ", ", text.strip())
    return np.asarray(literal(with_commas), dtype=np.float32)


class StandardOutput:
    """A standard output that keeps the texts of a pattern, and passes others on."""

    PATTERN: str

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def keep(self, name: str, text: str) -> None:
        """Take the two parts of a text that was printed."""
        raise NotImplementedError

    def write(self, text: str) -> int:
        printed = re.fullmatch(self.PATTERN, text, re.DOTALL)
        if not printed:
            return self.stream.write(text)
        self.keep(printed[1], printed[2])
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class PrintedCallbacks(StandardOutput):
    """It turns the text of `debug.print` back into events."""

    FORMAT = "conformance: {what}: {value}"
    PATTERN = r"conformance: (\w+): (.*?)\s*"
    recorder: Recorder
    parse: Callable[[str], Any]

    @classmethod
    def install(cls, recorder: Recorder, parse: Callable[[str], Any] = parse_array) -> None:
        """From now on, this recorder gets printed text, after `parse` has converted it."""
        if not isinstance(sys.stdout, cls):
            sys.stdout = cls(sys.stdout)
        sys.stdout.recorder = recorder
        sys.stdout.parse = parse

    def keep(self, name: str, text: str) -> None:
        with self.recorder.callback(name, self.parse(text)):
            pass
