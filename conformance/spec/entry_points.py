"""What installed packages add to the suite, by entry points in groups of these names.

Vendors' modules import the suite as `hostcb_conformance`, or as `conformance`, whichever of the two runs. This module
imports no JAX.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from .errors import CommandError
from .package import PACKAGE

PLATFORMS = "hostcb_conformance.platforms"
CALLBACKS = "hostcb_conformance.callbacks"
TRANSFORMS = "hostcb_conformance.transforms"
CASES = "hostcb_conformance.cases"

NAMES = ("hostcb_conformance", "conformance")
"""The names under which the suite may run."""

PAGE = "docs/vendors.md"


class VendorError(CommandError):
    """Something that a package or a file adds to the suite, and that cannot be used; the text says why."""


def entry_points(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """The entry points of a group, by name. One that several folders of `sys.path` declare alike counts once."""
    found = {(point.name, point.value): point for point in importlib.metadata.entry_points(group=group)}
    return tuple(found[key] for key in sorted(found))


def origin(point: importlib.metadata.EntryPoint) -> str:
    """A text of the entry point, with its package."""
    package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return f"the entry point {point.name} = {point.value!r} in the group {point.group}{package}"


def load(point: importlib.metadata.EntryPoint) -> Any:
    return attempted(point.load, origin(point))


def import_module(name: str, where: str) -> ModuleType:
    return attempted(lambda: importlib.import_module(name), f"{where}: the module {name}")


T = TypeVar("T")


def attempted(action: Callable[[], T], what: str) -> T:
    """The result of a vendor's code; what it raises becomes a sentence."""
    answer_to_both_names()
    try:
        return action()
    except VendorError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else frames[-1][:2]
        words = " ".join(str(error).split())
        # A module that is not found is missed by Python's own importer, whose line says nothing.
        place = "" if str(file).startswith("<frozen ") else f" ({file}, line {line})"
        raise VendorError(f"{what} raised {type(error).__name__}: {words}{place}") from error


def answer_to_both_names() -> None:
    """Let the other name of the suite lead to its running modules, and not to a second copy of them.

    A vendor's module is the same for a checkout and for a wheel; the suite's classes are only its own in one copy.
    """
    for name in NAMES:
        if (
            name != PACKAGE
            and name not in sys.modules
            and not any(isinstance(finder, _OtherName) and finder.name == name for finder in sys.meta_path)
        ):
            # An unrelated package may be called `conformance`.
            if name == "conformance" and importlib.util.find_spec(name) is not None:
                continue
            sys.meta_path.insert(0, _OtherName(name))


class _OtherName(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `hostcb_conformance.x` where `conformance.x` is, and the other way round."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name and not fullname.startswith(f"{self.name}."):
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(PACKAGE + spec.name.removeprefix(self.name))
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module has run already. The import system has put the other name's spec into it.
        module.__spec__ = self._own_spec
