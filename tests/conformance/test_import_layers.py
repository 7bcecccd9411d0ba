"""The imports of `conformance/` point one way, and name no package, so that it works under another name too."""

from __future__ import annotations

import re

from support.layers import Package, cycles, wrong_imports

LAYERS = (
    *("__init__", "spec", "model", "oracle", "warm", "implementations", "cases", "planning", "standalone", "worker"),
    *("expectations", "reports", "bundles", "engine", "minimising", "releases", "bisecting", "mutants", "soak"),
    *("cli", "__main__"),
)
"""The lowest first. docs/architecture.md says what each is for."""


def test_imports_point_one_way_and_are_relative() -> None:
    """In a wheel the package has another name."""
    suite = Package.named("conformance")
    assert wrong_imports(suite, LAYERS) == []
    assert cycles(suite) == []
    absolute = re.compile(r"^\s*(?:from|import) conformance\b", re.MULTILINE)
    assert [module for module, path in suite.modules.items() if absolute.search(path.read_text())] == []
