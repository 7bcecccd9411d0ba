"""Where cases are found. Each is registered beside its function, when its module is imported.

A plan imports all modules. A worker looks for the cases of its cells, and imports the modules that name them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path

from ...spec.package import module
from .registry import RegisteredCase, entered, entry
from .runtime_targets import TARGETS

RUNTIME_TARGETS = tuple(TARGETS)
"""The runtime's targets that JAX and hostcb use for callbacks on CPU; their cells count as JAX's."""

_CASES = Path(__file__).parents[1]


def all_cases() -> tuple[RegisteredCase, ...]:
    """The cases of every module, and those of vendors that `extensions` has added."""
    _import_all()
    return entered()


def case_named(callback: str, name: str) -> RegisteredCase | None:
    """The case of a callback with this name, such as `case.raises.jit`; no other module is imported if one has it."""
    kind = name.split(".")[1]
    if found := entry(callback, name):
        return found
    # A kind is a function's name, or stands in quotes, or is put together and stands in no source.
    for text in (f"def {kind}(", f'"{kind}"', ""):
        for _ in _import_modules(text):
            if found := entry(callback, name):
                return found
    return None


@functools.cache
def _import_all() -> None:
    for _ in _import_modules():
        pass


def _import_modules(text: str = "") -> Iterator[None]:
    """Import each module of a subject whose source has this text."""
    for name, source in _sources():
        if text in source:
            importlib.import_module(name)
            yield


@functools.cache
def _sources() -> tuple[tuple[str, str], ...]:
    """The modules of all subjects, by name, and their sources."""
    paths = (path for path in sorted(_CASES.glob("*/*.py")) if path.parent.name != "harness")
    return tuple((module(f"cases.{path.parent.name}.{path.stem}"), path.read_text(encoding="utf-8")) for path in paths)
