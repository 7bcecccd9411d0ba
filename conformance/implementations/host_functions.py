"""What the host does in a callback of a program: record what came, and give back what is wanted.

They are frozen dataclasses, so that equal ones make equal primitives and the programs of a worker
share what JAX compiled for them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from conformance.callbacks import RETURNED_OFFSET
from conformance.history import Recorder


@dataclass(frozen=True)
class ReturningFunction:
    """The function of a callback that may have a result: nothing, or one more than its operand."""

    site: str
    recorder: Recorder = field(repr=False)
    returns_new_value: bool

    def __call__(self, operand: Any, device: Any = None) -> Any:
        with self.recorder.callback(self.site, operand, (), device):
            if not self.returns_new_value:
                return None
            value = operand["value"] if isinstance(operand, dict) else operand
            # NumPy makes a scalar of `value + 1` for a scalar array; the contract wants an array.
            return np.asarray(value + np.float32(RETURNED_OFFSET))


def parse_array(text: str) -> Any:
    """The float32 array that NumPy wrote."""
    with_commas = re.sub(r"(?<=[\d.\]])\s+(?=[-\d\[])", ", ", text.strip())
    return np.asarray(ast.literal_eval(with_commas), dtype=np.float32)


def as_text(text: str) -> Any:
    """What was printed, as it stands."""
    return np.asarray(text.strip())


class PrintedCallbacks:
    """Standard output that turns what `debug.print` writes back into events, and passes on the rest."""

    FORMAT = "conformance: {what}: {value}"

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.recorder = Recorder()
        self.parse: Callable[[str], Any] = parse_array

    @classmethod
    def install(cls, recorder: Recorder, parse: Callable[[str], Any] = parse_array) -> None:
        """From now on what is printed goes to this recorder, as what `parse` makes of it."""
        if not isinstance(sys.stdout, cls):
            sys.stdout = cls(sys.stdout)
        sys.stdout.recorder = recorder
        sys.stdout.parse = parse

    def write(self, text: str) -> int:
        printed = re.fullmatch(r"conformance: (\w+): (.*?)\s*", text, re.DOTALL)
        if not printed:
            return self.stream.write(text)
        with self.recorder.callback(printed[1], self.parse(printed[2])):
            return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
