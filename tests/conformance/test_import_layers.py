"""The imports of `conformance/` point one way, and name no package, so that it works under another name too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from layers import Package, cycles, wrong_imports

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
        "cli.entry",
        "engine.pytest_cells.plugin",
        "engine.execution",
        "worker.processes",
        "oracle.checkers",
        "reports.html",
    )
    modules += ("bundles.earning", "spec.capabilities", "minimising.search", "minimising.failures", "soak.watching")
    imports = "; ".join(f"import conformance.{module}" for module in modules)
    source = f"import sys; sys.modules['jax'] = None; {imports}"
    ended = subprocess.run([sys.executable, "-c", source], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_the_documentation_names_modules_that_are_there() -> None:
    """`conformance/spec/data.py`, `spec/data.py` and `reports.markdown` are ways to name one."""
    pages = [*PROJECT.glob("docs/*.md"), *PROJECT.glob("*.md"), PROJECT / "conformance" / "README.md"]
    tops = "|".join(layer for layer in LAYERS if not layer.startswith("__"))
    path = re.compile(rf"`(?:conformance/)?((?:{tops})/[\w/]*(?:\.py)?)`")
    # `mutants.json` and `mutants.md` are files of results.
    dotted = re.compile(rf"`((?:{tops})\.(?!json|md)[a-z_]+)`")
    named = {name for page in pages for name in path.findall(page.read_text())}
    named |= {name.replace(".", "/") + ".py" for page in pages for name in dotted.findall(page.read_text())}
    assert len(named) > 30
    assert [name for name in sorted(named) if not (PROJECT / "conformance" / name).exists()] == []


def test_imports_are_relative() -> None:
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
    "statement",
    [
        "from ..upper import high",
        "from ..upper.high import function",
        "from .. import upper",
        "from toy.upper import high",
        "import toy.upper.high",
        "def function():\n    from ..upper import high",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..upper.high import Class",
    ],
)
def test_an_import_of_a_higher_layer_is_found(tmp_path: Path, statement: str) -> None:
    toy = package(tmp_path, {"lower/low": statement, "upper/high": "from ..lower import low", "upper/__init__": ""})
    (wrong,) = wrong_imports(toy, ("__init__", "lower", "upper"))
    assert re.fullmatch(r"toy/lower/low\.py:\d: lower\.low imports upper\.(high|__init__)", wrong)
    assert len(cycles(toy)) == 1


def test_parts_of_one_layer_import_nothing_of_each_other(tmp_path: Path) -> None:
    toy = package(tmp_path, {"left": "from . import right", "right": "", "upper": "from . import left, right"})
    assert wrong_imports(toy, ("__init__", "left", "right", "upper"))
    assert wrong_imports(toy, ("__init__", "left right", "upper"))
    assert wrong_imports(toy, ("__init__", "right", "left", "upper")) == []


def test_a_module_in_no_layer_is_found(tmp_path: Path) -> None:
    toy = package(tmp_path, {"left": "", "lefthand": ""})
    assert wrong_imports(toy, ("__init__", "left")) == ["lefthand is in no layer"]


def test_a_cycle_of_packages_without_one_of_modules_is_found(tmp_path: Path) -> None:
    toy = package(tmp_path, {"a/one": "from ..b import one", "b/one": "", "b/two": "from ..a import two", "a/two": ""})
    (cycle,) = cycles(toy)
    assert cycle == "toy/a/one.py:1: a.one imports b.one; toy/b/two.py:1: b.two imports a.two"


def test_a_package_and_its_modules_form_a_cycle(tmp_path: Path) -> None:
    toy = package(tmp_path, {"a/__init__": "from .one import function", "a/one": "from . import constant"})
    (cycle,) = cycles(toy)
    assert cycle == "toy/a/__init__.py:1: a.__init__ imports a.one; toy/a/one.py:1: a.one imports a.__init__"
