#!/usr/bin/env python3
"""The public names of hostcb with their signatures, as text; run as a program, it writes contract/public_names.txt."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hostcb
import hostcb.debug

FILE = Path(__file__).parent / "contract" / "public_names.txt"
COMMAND = "python tests/public_names.py"


def _lines(name: str, value: Any) -> Iterator[str]:
    """A line for a function or module; one for a class, with its base classes, and one for each of its own members."""
    if isinstance(value, ModuleType):
        yield f"module {name}"
    elif inspect.isclass(value) and not value.__module__.startswith("hostcb"):
        # A class of JAX's, which has the members of that release.
        yield f"class {name}: {value.__module__}"
    elif inspect.isclass(value):
        bases = ", ".join(base.__qualname__ for base in value.__bases__)
        # Of inherited ones some releases of Python tell the signature, and some do not.
        signature = inspect.signature(value) if "__init__" in vars(value) else ""
        yield f"class {name}{signature}: {bases}"
        for member, inner in sorted(vars(value).items()):
            if not member.startswith("_"):
                yield from _lines(f"{name}.{member}", inner)
    elif callable(value):
        yield f"def {name}{inspect.signature(value)}"
    else:
        yield f"{type(value).__name__} {name}"


def snapshot() -> str:
    modules = (hostcb, hostcb.debug)
    public = ((f"{module.__name__}.{name}", getattr(module, name)) for module in modules for name in module.__all__)
    return "".join(f"{line}\n" for name, value in sorted(public) for line in _lines(name, value))


if __name__ == "__main__":
    FILE.write_text(snapshot(), encoding="utf-8")
    print(f"wrote {FILE}", file=sys.stderr)
