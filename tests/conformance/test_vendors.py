"""What packages, files and modules of others add to the suite, and what is said of those that cannot be used."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from suite_runs import ROOT, Capture, Patch, ran, report_in, run, verdicts
from support.vendor_packages import PLUGIN, installed, on_the_page

from conformance.cases.harness import extensions
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.registry import _ENTERED
from conformance.cli.commands import main, reported
from conformance.engine.options import RunOptions
from conformance.engine.preparation import ConflictingOptionsError, prepare, workers_of
from conformance.expectations.entries import load_expectations, toml_of
from conformance.implementations import ImplementationError, load, path_of
from conformance.implementations.external import ExternalCallbacks
from conformance.model.transforms import TRANSFORMS
from conformance.planning.cells import parse_cell
from conformance.spec import external_callbacks, platforms
from conformance.spec.platforms import platform_in
from conformance.spec.topology import Topology, WrongPlatformError

pytestmark = pytest.mark.contract("C50")

SUITE = on_the_page("acme_suite.py")
SPEC, MODEL = "conformance.spec.external_callbacks", "conformance.model.transforms"
HARNESS = "conformance.cases.harness"


@pytest.fixture(autouse=True)
def no_vendor_stays(monkeypatch: Patch) -> Iterator[None]:
    """Undo what a test has added to the suite."""
    all_cases()
    callbacks, done, modules = [*external_callbacks.ALL_CALLBACKS], {*extensions._done}, {*sys.modules}
    registries: list[dict[Any, Any]] = [TRANSFORMS, _ENTERED, external_callbacks._NAMED]
    before = [{**registry} for registry in registries]
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    external_callbacks.ALL_CALLBACKS[:] = callbacks
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    extensions._done.clear()
    extensions._done.update(done)
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


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of docs/vendors.md, with a plugin of its own."""
    groups = tomllib.loads(on_the_page("pyproject.toml"))["project"]["entry-points"]
    # What the modules of the platform add, entry points do not add again.
    groups = {name: points for name, points in groups.items() if name.endswith(("jax_plugins", "platforms"))}
    # Without what no CPU can have.
    own = [line for line in on_the_page("acme.toml").splitlines() if not line.startswith(("version", "xla_flags"))]
    files = {"acme.toml": "\n".join(own).replace("acme_npu", "cpu"), "acme_known.toml": "", "acme_plugin.py": PLUGIN}
    files |= {"acme_platform.py": on_the_page("acme_platform.py"), "acme_suite.py": SUITE}
    return installed(tmp_path / "site", groups, files)


def test_a_package_adds_a_platform_and_its_cells(tmp_path: Path, package: Path) -> None:
    """Planning, the worker and the report know the same; the claims are judged, and one is not tested."""
    asked = [f"--cell={cell}" for cell in CELLS]
    ended = run(tmp_path, "--platform", "acme", *asked, PYTHONPATH=f"{ROOT}:{package}", XLA_FLAGS="")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = report_in(tmp_path / "results", "acme")
    assert verdicts(report) == dict.fromkeys(CELLS, "pass")
    untested = {"verdict": "not tested", "cells": 0, "failed": []}
    assert report["claims"] == [{"name": name} | untested for name in ("ordered", "hostcb:call")]
    assert "claimed capability `ordered`: no cell of this run tested it" in ended.stdout
    # A module that imports `hostcb_conformance` gets the classes of the suite that runs as `conformance`.
    (package / "acme_suite.py").write_text(SUITE.replace("from conformance.", "from hostcb_conformance."))
    use(package)
    assert parse_cell(CELLS[0]).callback_name == "pure_callback_unrolled"
    assert parse_cell(CELLS[2]).promises == ("X2",)
    assert sys.modules["acme_suite"].case is importlib.import_module("conformance.cases.harness.case").case


def test_a_file_is_enough(tmp_path: Path, capsys: Capture) -> None:
    """Paths in a file begin where the file is."""
    (tmp_path / "acme_known.toml").touch()
    (tmp_path / "acme_suite.py").write_text(SUITE)
    file = tmp_path / "acme.toml"
    file.write_text(on_the_page("acme.toml"))
    use(tmp_path)
    assert main(["list", "--platforms", "--platform", str(file)]) == 0
    shown = capsys.readouterr().out.partition("\nacme, by ")[2]
    assert "acme_npu" in shown and "at most 2" in shown
    assert platform_in(file).expectations == tmp_path / "acme_known.toml"
    environment = Topology("acme", 1).environment({"XLA_FLAGS": "--xla_acme=0", "ACME_LOG": "loud"})
    own = {"JAX_PLATFORMS": "acme,cpu", "XLA_FLAGS": "--xla_acme=0", "ACME_LOG": "loud"}
    assert environment == own, "the user has the last word"
    assert Topology("acme", 1).environment({})["ACME_LOG"] == "quiet"
    with pytest.raises(ConflictingOptionsError, match=r"-n 3: at most 2 process\(es\) may use the devices of acme"):
        workers_of(3, "acme")
    # The example, which `nox -s vendor` runs where its plugin is.
    toy = platform_in(ROOT / "examples" / "platform" / "toy_platform" / "toy.toml")
    assert (toy.name, toy.jax_name, toy.devices) == ("toy", "toy", ("toy_npu",))
    assert toy.expectations and load_expectations(toy.expectations).entries


DESCRIBED = "jax/io_callback/eager/acme-1dev"
"""A cell of a platform that only a file describes."""


def test_commands_for_one_cell_take_a_file_and_print_it(tmp_path: Path, capsys: Capture) -> None:
    """The program finds the description as well, in an environment that has it not."""
    file, program = tmp_path / "acme.toml", tmp_path / "cell.py"
    file.write_text("[platform]\nname = 'acme'\nregistered = 'cpu'\ndevices = 'cpu'\n")
    assert main(["repro", DESCRIBED, "--platform", str(file), "--program", str(program)]) == 0
    assert capsys.readouterr().out == f"python -m conformance run --platform {file} --cell {DESCRIBED}\n"
    os.environ.pop(platforms.FILES)
    forget()
    ended = ran(tmp_path, sys.executable, program)
    assert ended.stdout.splitlines()[-1:] == [f"{DESCRIBED}: pass"], ended.stderr
    assert main(["minimise", DESCRIBED, "--platform", str(file), "--runs", "1"]) == 3
    assert f"{DESCRIBED} passes" in capsys.readouterr().out
    assert main(["repro", DESCRIBED.replace("acme", "cuda"), "--platform", str(file)]) == 2
    assert "name cuda, acme" in capsys.readouterr().err


def test_an_entry_for_another_number_of_devices_is_not_stale(tmp_path: Path) -> None:
    """The file is for all devices of the platform, and a run may be on fewer of them; a wrong name is stale."""
    file, known = tmp_path / "acme.toml", tmp_path / "acme_known.toml"
    file.write_text(
        "[platform]\nname = 'acme'\nregistered = 'cpu'\ndevices = 'cpu'\nexpectations = 'acme_known.toml'\n"
    )
    cells = ["jax/io_callback/shard_map/acme-4dev", "jax/io_callback/no_such/acme-4dev"]
    fields = {"cells": cells, "verdict": "fail", "reason": "a test", "link": "none", "since": "2026-11-28"}
    known.write_text(toml_of(fields))
    options = RunOptions(platform=str(file), cells=(DESCRIBED,), results=tmp_path / "results")
    assert prepare(options)._report.stale_expectations == (cells[1],)


# What cannot be used.


def test_only_what_works_is_advised_without_devices(capsys: Capture) -> None:
    """A cell may be of another platform than the options: the error itself names its platform."""

    def absent(_: Namespace) -> int:
        raise WrongPlatformError("asked for its devices")

    for platform, advised in {"acme": False, "acme.toml": False, "cpu": False, "tpu": True}.items():
        assert reported(absent, Namespace(platform=platform, depth="auto")) == 2
        said = capsys.readouterr().err
        assert "cells cannot run here" in said and "asked for its devices" in said and f"{platform} cells" not in said
        assert ("--depth lower" in said) is advised


def test_the_error_of_a_plugin_is_told(tmp_path: Path) -> None:
    """JAX only logs it, and says itself that it has no such platform."""
    broken = "def initialize():\n    raise OSError('libacme.so: driver 3.1 is too old')\n"
    site = installed(tmp_path / "site", {"jax_plugins": {"acme": "acme_plugin"}}, {"acme_plugin.py": broken})
    ended = run(tmp_path, "--platform", "acme", "--smoke", PYTHONPATH=f"{ROOT}:{site}")
    (line,) = ended.stderr.splitlines()
    assert "acme_plugin.initialize(): OSError: libacme.so: driver 3.1 is too old" in line
    assert "--platform FILE.toml" in line and "JAX_PLATFORMS" not in line


def error_of(capsys: Capture, *arguments: str) -> str:
    """The one line of an error in the options."""
    assert main(["list", "-k", "no such cell", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ERROR: ")
    return line


def test_wrong_files(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "wrong.toml"
    for text, named in {
        "": "[platform]",
        "[platfrom]\nname = 'a'": "'platfrom'",
        "[platform]\nname = 'a'\nclaims = 'odered'": "'odered'",
        "[platform]\nname = 'a'\nworkers = {default = 3, maximum = 2}": "3",
        "[platform]\nname = 'a'\ndevice_counts = [0]": "[0]",
        "[platform]\nname = 'a'\nenvironment = {'A=B' = '1'}": "'A=B'",
        "[platform]\nname = 'a'\nxla_flags = 'xla_a=1'": "'xla_a=1'",
        "[platform]\nname = 'a'\nenvironment = {XLA_FLAGS = ''}": "'xla_flags'",
        "[platform]\nname = 'cpu'": "'cpu'",
        "[platform]\nname = 'a'\nmodules = 'acme_absent'": "ModuleNotFoundError: No module named 'acme_absent'",
    }.items():
        file.write_text(text)
        forget()
        line = error_of(capsys, "--platform", str(file))
        assert str(file) in line and named in line
        assert "<frozen" not in line
    assert "cannot be read: No such file" in error_of(capsys, "--platform", "none.toml")


@pytest.mark.parametrize(
    ("group", "source", "named"),
    [
        ("platforms", "FOUND = 3", "3"),
        ("platforms", "FOUND = {'name': 'b'}", "'b'"),
        ("callbacks", "FOUND = [3]", "3"),
        ("callbacks", "def FOUND(): raise KeyError('x')", "KeyError: 'x'"),
        ("callbacks", f"from {SPEC} import callback_named as named\nFOUND = named('io_callback')", "'io_callback'"),
        ("transforms", f"from {MODEL} import TRANSFORMS\nFOUND = TRANSFORMS['scan']", "'scan'"),
        ("cases", f"from {HARNESS}.catalogue import all_cases\nFOUND = all_cases()[0]", "twice"),
    ],
)
def test_wrong_entry_points(tmp_path: Path, capsys: Capture, group: str, source: str, named: str) -> None:
    group = f"hostcb_conformance.{group}"
    use(installed(tmp_path, {group: {"acme": "acme_one:FOUND"}}, {"acme_one.py": source}))
    line = error_of(capsys, "--platform", "acme", "--devices", "1")
    assert f"the entry point acme = 'acme_one:FOUND' in the group {group} of acme-conformance 1.0" in line
    assert named in line


# Implementations in modules: every process loads them by their path, which may not be their `name`.

CASE = "pure_callback/case.os_exit.pmap/cpu-1dev"
MODULE = """\
import os, sys
from types import SimpleNamespace
import jax
from conformance.implementations.external import ExternalCallbacks

class Mine(ExternalCallbacks):
    callback_exception = RuntimeError
    __hash__ = None
    def __eq__(self, other):
        return True
    def __init__(self, mark):
        super().__init__(SimpleNamespace(pure_callback=jax.pure_callback))
        self.mark = mark
    def invoke(self, *arguments, **options):
        with open(os.environ["MARKS"], "a") as marks:
            marks.write(f"{self.mark} in {os.path.basename(sys.argv[0])}\\n")
        return super().invoke(*arguments, **options)
    def barrier(self):
        jax.effects_barrier()

IMPLEMENTATION, JAX = Mine("module"), Mine("jax")
IMPLEMENTATION.name = "my own callbacks"
# Another one is loaded by this.
JAX.name = "jax"
"""


@pytest.mark.contract("C2")
def test_programs_of_cases_load_what_the_cell_names(tmp_path: Path) -> None:
    """The cell's id, by which it is expected, repeated and compared, has the path.

    One module is in the current folder, one in another, and the last is the example of the documentation.
    """
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.py").write_text(MODULE.replace('"module"', '"elsewhere"'))
    # The second folder is relative, and counts from where the command is called.
    environment = {"PYTHONPATH": f"{ROOT}:elsewhere:{ROOT / 'examples'}", "MARKS": str(tmp_path / "marks")}
    marks = {f"mine/{CASE}": "module", f"mine:JAX/{CASE}": "jax", f"other/{CASE}": "elsewhere"}
    cells = [*marks, "own_callbacks/io_callback_ordered/jit/cpu-1dev"]
    ended = run(tmp_path, "-n", "1", *(f"--cell={cell}" for cell in cells), **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert verdicts(report_in(tmp_path / "results")) == dict.fromkeys(cells, "pass")
    written = (tmp_path / "marks").read_text().splitlines()
    assert sorted(written) == sorted(f"{mark} in child_programs.py" for mark in marks.values())


@pytest.mark.contract("C2")
def test_a_path_is_that_by_which_an_implementation_was_loaded(tmp_path: Path, monkeypatch: Patch) -> None:
    """Neither its name nor one that is equal to it; and where no path leads to it there is an error."""
    module = f"planted_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("hostcb", "jax", "conformance.mutants:late", module, f"{module}:JAX"):
        assert path_of(load(path)) == path

    class Nobodys(ExternalCallbacks):
        callback_exception = RuntimeError

        def barrier(self) -> None: ...

    nobodys: Any = Nobodys(SimpleNamespace(pure_callback=jax.pure_callback))
    for name in ("jax", "mine", None, "conformance.planning.cells"):
        nobodys.name = name
        with pytest.raises(ImplementationError):
            path_of(nobodys)
    for wrong in ("no_such_module", "own.py", "conformance.mutants:no_such", "conformance.planning.cells"):
        with pytest.raises(ImplementationError, match=re.escape(wrong.rpartition(":")[2])):
            load(wrong)
