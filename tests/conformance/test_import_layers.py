"""The imports of `conformance/` point one way, and name no package, so that it works under another name too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.layers import Package, cycles, wrong_imports

LAYERS = (
    *("__init__", "spec", "model", "oracle", "warm", "implementations", "cases", "planning", "standalone", "worker"),
    *("expectations", "reports", "bundles", "engine", "minimising", "releases", "bisecting", "mutants", "soak"),
    *("cli", "__main__"),
)
"""The lowest first. docs/architecture.md says what each is for."""

CONFORMANCE = Package.named("conformance")


def test_imports_point_one_way_and_are_relative() -> None:
    """In a wheel the package has another name."""
    assert wrong_imports(CONFORMANCE, LAYERS) == []
    assert cycles(CONFORMANCE) == []
    absolute = [
        f"{module}: {line}"
        for module, path in CONFORMANCE.modules.items()
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|import) conformance\b", line)
    ]
    assert absolute == []


def test_the_processes_of_pytest_and_the_readers_of_results_need_no_jax() -> None:
    """Importing it takes a second and changes a process; where a CI system makes its reports there may be none."""
    modules = ("engine.pytest_cells.plugin", "cli.commands", "engine.execution", "worker.processes", "oracle.checkers")
    modules += ("reports.html", "bundles.earning", "spec.capabilities", "minimising.search", "minimising.failures")
    imports = "; ".join(f"import conformance.{module}" for module in modules)
    source = f"import sys; sys.modules['jax'] = None; {imports}"
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", source], cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
