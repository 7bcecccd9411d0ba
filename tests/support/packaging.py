"""The module of `ci/packaging` that compiles the native extension."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

NATIVE = Path(__file__).parents[2] / "ci" / "packaging" / "native.py"


def native() -> Any:
    spec = importlib.util.spec_from_file_location("packaging_native", NATIVE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
