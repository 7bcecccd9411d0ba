"""Format and write the text of `id_print` (H2)."""

from __future__ import annotations

import dataclasses
import sys
import threading
from typing import Any

import jax
import numpy as np

from .._spec.naming import shown

WIDTH = 80
THRESHOLD = 1024

# Prints of several threads are never mixed. Re-entrant, since a stream's `write` may itself print.
_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Printer:
    """The tap function behind `id_print`; printers with equal fields are equal, so printing twice compiles once."""

    output_stream: Any
    threshold: int | None
    labels: tuple[tuple[str, Any], ...]

    @property
    def __name__(self) -> str:
        """The labels as they are printed: a print has no name of its own."""
        return repr(shown(_Labels(self.labels))) if self.labels else "a print without labels"

    def __call__(self, argument: Any, transforms: Any, *, device: Any = None) -> None:
        labels = dict(self.labels)
        if transforms:
            labels["transforms"] = [_shown(*transform) for transform in transforms]
        if device is not None:
            labels["device"] = device
        lines = [" ".join(f"{key}: {value}" for key, value in sorted(labels.items()))] if labels else []
        lines.append(format_value(argument, THRESHOLD if self.threshold is None else self.threshold))
        write("\n".join(lines) + "\n", self.output_stream)


class _Labels:
    """Labels whose repr is their text, which may raise and may be long."""

    def __init__(self, labels: tuple[tuple[str, Any], ...]):
        self.labels = labels

    def __repr__(self) -> str:
        return " ".join(f"{key}: {value}" for key, value in self.labels)


def write(text: str, output_stream: Any = None) -> None:
    """Write `text` without the text of other threads inside it."""
    with _lock:
        # `print` would write twice, the text and its end, and another thread's text could come between them.
        stream = sys.stdout if output_stream is None else output_stream
        # A program without a console has no standard output.
        if stream is not None:
            stream.write(text)


def _shown(name: str, parameters: dict[str, Any]) -> Any:
    """Return a transform for printing: its name alone if it has no parameters."""
    return (name, parameters) if parameters else name


def format_value(value: Any, threshold: int) -> str:
    """Format `value` with its containers in brackets: on one line if that fits, or else with an item a line."""
    if isinstance(value, np.ndarray):
        return np.array2string(value, threshold=threshold)
    if isinstance(value, tuple):
        return _enclose("( ", [format_value(item, threshold) for item in value], " )")
    if isinstance(value, list):
        return _enclose("[ ", [format_value(item, threshold) for item in value], " ]")
    if isinstance(value, dict):
        items = value.items() if unsortable(value) else sorted(value.items())
        return _enclose("{ ", [f"{key}={format_value(item, threshold)}" for key, item in items], " }")
    return str(value)


def unsortable(value: dict[Any, Any]) -> bool:
    """Return whether the keys have no order; then they print in the dict's own order."""
    try:
        sorted(value)
    except TypeError:
        return True
    return False


class _Unsorted(dict[Any, Any]):
    """A pytree node for a dict whose keys cannot be sorted, as JAX requires. Unflattening it makes a dict."""


def _again(keys: Any, values: Any) -> Any:
    return dict(zip(keys, values, strict=True))


jax.tree_util.register_pytree_node(_Unsorted, lambda value: (tuple(value.values()), tuple(value)), _again)


def as_pytree(value: Any) -> Any:
    """Return `value` as a pytree that JAX can flatten, also if its dicts have keys that cannot be sorted."""

    def convert(each: Any) -> Any:
        return _Unsorted({key: as_pytree(item) for key, item in each.items()}) if stops_jax(each) else each

    def stops_jax(each: Any) -> bool:
        return type(each) is dict and unsortable(each)

    return jax.tree_util.tree_map(convert, value, is_leaf=stops_jax)


def _enclose(opening: str, items: list[str], closing: str) -> str:
    line = opening + " ".join(items) + closing
    if len(line) <= WIDTH:
        return line
    return opening + "\n  ".join(items) + closing
