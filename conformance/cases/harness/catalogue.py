"""Where cases are found. Each is registered beside its function, when its module is imported.

A plan imports all modules. A worker looks for the cases of its cells, and imports the modules that name them.
"""

from __future__ import annotations

import functools
import importlib
import re
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
    # A kind whose name is put together stands in no source.
    for wanted in (rf"\b{kind}\b", ""):
        for _ in (None, *_import_modules(wanted)):
            if found := entry(callback, name):
                return found
    return None


@functools.cache
def _import_all() -> None:
    for _ in _import_modules():
        pass


def _import_modules(wanted: str = "") -> Iterator[None]:
    """Import each module of a subject in whose source this expression is found."""
    for path in sorted(_CASES.glob("*/*.py")):
        if path.parent.name != "harness" and re.search(wanted, path.read_text(encoding="utf-8")):
            importlib.import_module(module(f"cases.{path.parent.name}.{path.stem}"))
            yield
