"""What `id_print` writes (H2)."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np

WIDTH = 80
THRESHOLD = 1024

# One print is one piece, whichever threads print.
# A stream may print in turn, and then the thread is its own.
_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Printer:
    """The tap function behind `id_print`; equal ones are equal, so that printing twice compiles once."""

    output_stream: Any
    threshold: int | None
    labels: tuple[tuple[str, Any], ...]

    def __call__(self, argument: Any, transforms: Any, *, device: Any = None) -> None:
        labels = dict(self.labels)
        if transforms:
            labels["transforms"] = [_shown(*transform) for transform in transforms]
        if device is not None:
            labels["device"] = device
        lines = [" ".join(f"{key}: {value}" for key, value in sorted(labels.items()))] if labels else []
        lines.append(format_value(argument, THRESHOLD if self.threshold is None else self.threshold))
        write("\n".join(lines) + "\n", self.output_stream)


def write(text: str, output_stream: Any = None) -> None:
    """Print `text` in one piece."""
    with _lock:
        if output_stream is not None:
            output_stream.write(text)
        else:
            # One write: print would send the end of the line separately, and another thread's text between.
            print(text, end="")


def _shown(name: str, parameters: dict[str, Any]) -> Any:
    """A transform as it is printed: by its name alone where that says all."""
    return (name, parameters) if parameters else name


def format_value(value: Any, threshold: int) -> str:
    """`value` with its containers in brackets, on one line where that fits and an item a line where not."""
    if isinstance(value, np.ndarray):
        return np.array2string(value, threshold=threshold)
    if isinstance(value, tuple):
        return _enclose("( ", [format_value(item, threshold) for item in value], " )")
    if isinstance(value, list):
        return _enclose("[ ", [format_value(item, threshold) for item in value], " ]")
    if isinstance(value, dict):
        items = sorted(value.items())
        return _enclose("{ ", [f"{key}={format_value(item, threshold)}" for key, item in items], " }")
    return str(value)


def _enclose(opening: str, items: list[str], closing: str) -> str:
    line = opening + " ".join(items) + closing
    if len(line) <= WIDTH:
        return line
    return opening + "\n  ".join(items) + closing
