"""What packages, files and modules of others add to the suite, and what is said of those that cannot be used."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suite_runs import ROOT, Capture, Patch, ran, report_in, run, verdicts
from support.vendor_packages import PLUGIN, installed, on_the_page

from conformance.cases.harness import extensions
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.registry import _ENTERED
from conformance.cli.commands import main
from conformance.engine.preparation import ConflictingOptionsError, workers_of
from conformance.model.transforms import TRANSFORMS
from conformance.planning.cells import parse_cell
from conformance.reports.provenance import plugins
from conformance.spec import external_callbacks, platforms
from conformance.spec.platforms import platform_in
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C50")

SUITE = on_the_page("acme_suite.py")
SPEC, MODEL = "conformance.spec.external_callbacks", "conformance.model.transforms"
HARNESS = "conformance.cases.harness"


@pytest.fixture(autouse=True)
def no_vendor_stays(monkeypatch: Patch) -> Iterator[None]:
    """Undo what a test has added to the suite."""
    all_cases()
    callbacks, modules = [*external_callbacks.ALL_CALLBACKS], {*sys.modules}
    monkeypatch.setattr(extensions, "_done", {*extensions._done})
    registries: list[dict[Any, Any]] = [TRANSFORMS, _ENTERED, external_callbacks._NAMED]
    before = [{**registry} for registry in registries]
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    external_callbacks.ALL_CALLBACKS[:] = callbacks
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    for name in {*sys.modules} - modules:
        if name.startswith("acme"):
            del sys.modules[name]
    os.environ.pop(platforms.FILES, None)
    forget()


def forget() -> None:
    platforms._platform_named.cache_clear()
    platforms._in_files.cache_clear()
    importlib.invalidate_caches()


def use(folder: Path) -> None:
    """Let this process find the packages in a folder, as if it had just started."""
    sys.path.insert(0, str(folder))
    extensions._done.clear()
    forget()


# A whole package.

CELLS = (
    "jax/pure_callback_unrolled/vmap/acme-1dev",
    "jax/pure_callback/twice.jit/acme-1dev",
    "jax/pure_callback/case.acme_runs_again.jit/acme-1dev",
)


def test_a_package_adds_a_platform_and_its_cells(tmp_path: Path) -> None:
    """The package of docs/vendors.md: planning, the worker and the report know the same, and its claims are judged."""
    groups = tomllib.loads(on_the_page("pyproject.toml"))["project"]["entry-points"]
    # What the modules of the platform add, entry points do not add again.
    groups = {name: points for name, points in groups.items() if name.endswith(("jax_plugins", "platforms"))}
    # Without what no CPU can have.
    own = [line for line in on_the_page("acme.toml").splitlines() if not line.startswith(("version", "xla_flags"))]
    files = {"acme.toml": "\n".join(own).replace("acme_npu", "cpu"), "acme_known.toml": "", "acme_plugin.py": PLUGIN}
    files |= {"acme_platform.py": on_the_page("acme_platform.py"), "acme_suite.py": SUITE}
    package = installed(tmp_path / "site", groups, files)
    asked = [f"--cell={cell}" for cell in CELLS]
    ended = run(tmp_path, "--platform", "acme", *asked, PYTHONPATH=f"{ROOT}:{package}", XLA_FLAGS="")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = report_in(tmp_path / "results", "acme")
    assert verdicts(report) == dict.fromkeys(CELLS, "pass")
    assert [(claim["name"], claim["verdict"]) for claim in report["claims"]] == [
        ("ordered", "not tested"),
        ("hostcb:call", "not tested"),
    ]
    assert report["run"]["plugins"] == {"acme-conformance": "1.0"}
    assert "ACME_LOG=quiet" in report["run_info"]["acme-1dev"]["variables"]
    # A module that imports `hostcb_conformance` gets the classes of the suite that runs as `conformance`.
    (package / "acme_suite.py").write_text(SUITE.replace("from conformance.", "from hostcb_conformance."))
    use(package)
    assert parse_cell(CELLS[0]).callback_name == "pure_callback_unrolled"
    assert parse_cell(CELLS[2]).promises == ("X2",)
    assert sys.modules["acme_suite"].case is importlib.import_module("conformance.cases.harness.case").case


@pytest.mark.filterwarnings("ignore:Implicit None:DeprecationWarning")
def test_a_plugin_without_an_entry_point_is_recorded(tmp_path: Path) -> None:
    """JAX finds modules of a namespace package as well. What pip has left of a broken package has no name."""
    use(installed(tmp_path, {}, name="acme-module"))
    (tmp_path / "acme_module-1.0.dist-info" / "top_level.txt").write_text("jax_plugins\n")
    (tmp_path / "jax_plugins" / "acme").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "acme" / "__init__.py").touch()
    (tmp_path / "half-1.0.dist-info").mkdir()
    (tmp_path / "half-1.0.dist-info" / "entry_points.txt").write_text("[jax_plugins]\nhalf = acme\n")
    assert plugins()["acme-module"] == "1.0"


def test_a_file_is_enough(tmp_path: Path, capsys: Capture) -> None:
    """Paths in a file begin where the file is."""
    (tmp_path / "acme_known.toml").touch()
    (tmp_path / "acme_suite.py").write_text(SUITE)
    file = tmp_path / "acme.toml"
    file.write_text(on_the_page("acme.toml"))
    use(tmp_path)
    assert main(["list", "--platforms", "--platform", str(file)]) == 0
    assert "acme_npu" in capsys.readouterr().out.partition("\nacme, by ")[2]
    assert platform_in(file).expectations == tmp_path / "acme_known.toml"
    environment = Topology("acme", 1).environment({"XLA_FLAGS": "--xla_acme=0", "ACME_LOG": "loud"})
    own = {"JAX_PLATFORMS": "acme,cpu", "XLA_FLAGS": "--xla_acme=0", "ACME_LOG": "loud"}
    assert environment == own, "the user has the last word"
    assert Topology("acme", 1).environment({})["ACME_LOG"] == "quiet"
    with pytest.raises(ConflictingOptionsError, match="-n 3: at most 2 process"):
        workers_of(3, "acme")


def test_commands_for_one_cell_take_a_file_and_print_it(tmp_path: Path, capsys: Capture) -> None:
    """The program finds the description as well, in an environment that has it not."""
    file, program, cell = tmp_path / "acme.toml", tmp_path / "cell.py", "jax/io_callback/eager/acme-1dev"
    file.write_text("[platform]\nname = 'acme'\nregistered = 'cpu'\ndevices = 'cpu'\n")
    assert main(["repro", cell, "--platform", str(file), "--program", str(program)]) == 0
    assert capsys.readouterr().out == f"python -m conformance run --platform {file} --cell {cell}\n"
    os.environ.pop(platforms.FILES)
    forget()
    ended = ran(tmp_path, sys.executable, program)
    assert ended.stdout.splitlines()[-1:] == [f"{cell}: pass"], ended.stderr
    assert main(["minimise", cell, "--platform", str(file), "--runs", "1"]) == 3


# What cannot be used.


def test_what_cannot_be_used(tmp_path: Path, capsys: Capture) -> None:
    def error_of(*arguments: str) -> str:
        assert main(["list", "-k", "no such cell", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ERROR: ")
        return line

    file = tmp_path / "wrong.toml"
    for text, named in {
        "": "[platform]",
        "[platfrom]\nname = 'a'": "'platfrom'",
        "[platform]\nname = 'a'\nclaims = 'odered'": "'odered'",
        "[platform]\nname = 'cpu'": "'cpu'",
        "[platform]\nname = 'a'\nmodules = 'acme_absent'": "ModuleNotFoundError: No module named 'acme_absent'",
    }.items():
        file.write_text(text)
        forget()
        line = error_of("--platform", str(file))
        assert str(file) in line and named in line
    # Entry points.
    for number, (kind, source, named) in enumerate(
        (
            ("callbacks", "def FOUND(): raise KeyError('x')", "KeyError: 'x'"),
            ("callbacks", f"from {SPEC} import callback_named as named\nFOUND = named('io_callback')", "'io_callback'"),
            ("transforms", f"from {MODEL} import TRANSFORMS\nFOUND = TRANSFORMS['scan']", "'scan'"),
            ("cases", f"from {HARNESS}.catalogue import all_cases\nFOUND = all_cases()[0]", "twice"),
        )
    ):
        group, module = f"hostcb_conformance.{kind}", f"acme_{number}"
        use(installed(tmp_path / module, {group: {"acme": f"{module}:FOUND"}}, {f"{module}.py": source}))
        line = error_of("--platform", "acme", "--devices", "1")
        assert f"the entry point acme = '{module}:FOUND' in the group {group} of acme-conformance 1.0" in line
        assert named in line
        sys.path.pop(0)


def test_the_error_of_a_plugin_is_told(tmp_path: Path) -> None:
    """JAX only logs it, and says itself that it has no such platform."""
    broken = "def initialize():\n    raise OSError('libacme.so: driver 3.1 is too old')\n"
    site = installed(tmp_path / "site", {"jax_plugins": {"acme": "acme_plugin"}}, {"acme_plugin.py": broken})
    ended = run(tmp_path, "--platform", "acme", "--smoke", PYTHONPATH=f"{ROOT}:{site}")
    (line,) = ended.stderr.splitlines()
    assert "acme_plugin.initialize(): OSError: libacme.so: driver 3.1 is too old" in line


# Implementations in modules: every process loads them by their path, which may not be their `name`.

MODULE = """\
import os, sys
from types import SimpleNamespace
import jax
from conformance.implementations.external import ExternalCallbacks

class Mine(ExternalCallbacks):
    callback_exception = RuntimeError
    # Another one is loaded by this.
    name = "jax"
    def invoke(self, *arguments, **options):
        with open(os.environ["MARKS"], "a") as marks:
            marks.write(os.path.basename(sys.argv[0]))
        return super().invoke(*arguments, **options)
    def barrier(self):
        jax.effects_barrier()

MINE = Mine(SimpleNamespace(pure_callback=jax.pure_callback))
"""


@pytest.mark.contract("C2")
def test_programs_of_cases_load_what_the_cell_names(tmp_path: Path) -> None:
    """The cell's id, by which it is expected, repeated and compared, has the path; the last is that of the page."""
    (tmp_path / "mine.py").write_text(MODULE)
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}", "MARKS": str(tmp_path / "marks")}
    cells = ["mine:MINE/pure_callback/case.os_exit.pmap/cpu-1dev", "own_callbacks/io_callback_ordered/jit/cpu-1dev"]
    ended = run(tmp_path, "-n", "1", *(f"--cell={cell}" for cell in cells), **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert verdicts(report_in(tmp_path / "results")) == dict.fromkeys(cells, "pass")
    assert (tmp_path / "marks").read_text() == "child_programs.py"
