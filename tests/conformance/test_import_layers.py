"""The imports of `conformance/` point one way, and name no package, so that it works under another name too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.layers import Package, cycles, wrong_imports

LAYERS = (
    "__init__",
    "spec",
    "model",
    "oracle",
    "warm",
    "implementations",
    "cases",
    "planning",
    "standalone",
    "worker",
    "expectations",
    "reports",
    "bundles",
    "engine",
    "minimising",
    "releases",
    "bisecting",
    "mutants",
    "soak",
    "cli",
    "__main__",
)
"""The lowest first. docs/architecture.md says what each is for."""

CONFORMANCE = Package.named("conformance")
PROJECT = Path(__file__).parents[2]


def test_imports_point_one_way() -> None:
    assert wrong_imports(CONFORMANCE, LAYERS) == []


def test_there_is_no_cycle() -> None:
    assert cycles(CONFORMANCE) == []


def test_the_processes_of_pytest_and_the_readers_of_results_need_no_jax() -> None:
    """Importing it takes a second and changes a process; where a CI system makes its reports there may be none."""
    modules = (
        "engine.pytest_cells.plugin",
        "cli.commands",
        "engine.execution",
        "worker.processes",
        "oracle.checkers",
        "reports.html",
    )
    modules += ("bundles.earning", "spec.capabilities", "minimising.search", "minimising.failures")
    imports = "; ".join(f"import conformance.{module}" for module in modules)
    source = f"import sys; sys.modules['jax'] = None; {imports}"
    ended = subprocess.run([sys.executable, "-c", source], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_imports_are_relative() -> None:
    """In a wheel the package has another name."""
    absolute = [
        f"{module}: {line}"
        for module, path in CONFORMANCE.modules.items()
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|import) conformance\b", line)
    ]
    assert absolute == []


def package(folder: Path, sources: dict[str, str]) -> Package:
    """A package with these modules."""
    for name, source in sources.items():
        path = folder / "toy" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (folder / "toy" / "__init__.py").touch()
    return Package.at(folder / "toy", "toy")


@pytest.mark.parametrize(
    "statement", ["from .. import upper", "import toy.upper.high", "def function():\n    from ..upper import high"]
)
def test_an_import_of_a_higher_layer_is_found(tmp_path: Path, statement: str) -> None:
    sources = {"lower/low": statement, "upper/high": "from ..lower import low", "upper/__init__": "", "lowerhand": ""}
    toy = package(tmp_path, sources)
    lost, wrong = wrong_imports(toy, ("__init__", "lower", "upper"))
    assert lost == "lowerhand is in no layer"
    assert re.fullmatch(r"toy/lower/low\.py:\d: lower\.low imports upper\.(high|__init__)", wrong)
    assert len(cycles(toy)) == 1
