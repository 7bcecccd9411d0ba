"""All cases. Each is registered beside its function, when its module is imported."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from ...spec.package import module
from .registry import entered
from .runtime_targets import TARGETS


def _import_subjects() -> None:
    """Import every module beside the harness: its decorators register its cases."""
    package = module("cases")
    for found in pkgutil.walk_packages([str(Path(__file__).parents[1])], f"{package}."):
        if not found.name.startswith(f"{package}.harness"):
            importlib.import_module(found.name)


_import_subjects()

FAULTS = [*entered()]
"""`extensions` adds those of vendors."""

RUNTIME_TARGETS = tuple(TARGETS)
"""The runtime's targets that JAX and hostcb use for callbacks on CPU; their cells count as JAX's."""
