"""The library with one of its files changed: whether it compiles, and the copy that a trial loads."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import subprocess
from pathlib import Path
from typing import Any

from ..overlay import PACKAGE, PROJECT


def is_c(module: str) -> bool:
    return module.endswith(".c")


def lacking() -> str:
    """Why no library can be built here; empty if one can."""
    native = _packaging()
    return str(native.lacks() or ("" if native.headers() else "the headers of XLA, which jaxlib has, are not there"))


def compiles(source: str, module: str) -> bool:
    native = _packaging()
    # The file is not where its header is.
    places = (f"-I{(PACKAGE / module).parent}", f"-I{native.headers()}", '-DHOSTCB_BUILD=""')
    command = [*native.compiler(), *native.FLAGS, "-w", "-fsyntax-only", *places, "-x", "c", "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0


def build_changed(folder: Path) -> None:
    """Compile the library of an overlay, in whose folder of sources all but the changed one are links."""
    place = folder / PACKAGE.name / "_native"
    native = _packaging()
    # A link to the library of the unchanged sources, which stays as it is.
    (place / native.NAME).unlink(missing_ok=True)
    native.build(folder=place)


@functools.cache
def _packaging() -> Any:
    """The module that compiles the library for a wheel, which is in no package."""
    path = PROJECT / "ci" / "packaging" / "native.py"
    loader = importlib.machinery.SourceFileLoader("packaging_native", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
