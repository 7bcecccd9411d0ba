"""What vendors' packages and files add to the suite, and what is said of those that cannot be used."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from suite_runs import ROOT, report_in, run, verdicts
from support.vendor_packages import PLUGIN, installed, on_the_page

from conformance.cases.harness import extensions
from conformance.cases.harness.catalogue import all_cases
from conformance.cases.harness.registry import _ENTERED
from conformance.cli.commands import main
from conformance.engine.preparation import ConflictingOptionsError, workers_of
from conformance.model.transforms import TRANSFORMS
from conformance.planning.cells import parse_cell
from conformance.spec import external_callbacks, platforms
from conformance.spec.platforms import platform_in
from conformance.spec.topology import Topology

pytestmark = pytest.mark.contract("C50")

SUITE = on_the_page("acme_suite.py")
SPEC, MODEL = "conformance.spec.external_callbacks", "conformance.model.transforms"
HARNESS = "conformance.cases.harness"


@pytest.fixture(autouse=True)
def no_vendor_stays() -> Iterator[None]:
    """Undo what a test has added to the suite."""
    all_cases()
    callbacks, transforms, cases = [*external_callbacks.ALL_CALLBACKS], {**TRANSFORMS}, {**_ENTERED}
    named, done, path, modules = {**external_callbacks._NAMED}, {*extensions._done}, [*sys.path], {*sys.modules}
    yield
    external_callbacks.ALL_CALLBACKS[:] = callbacks
    for registry, before in ((TRANSFORMS, transforms), (_ENTERED, cases), (external_callbacks._NAMED, named)):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(before)  # type: ignore[attr-defined]
    extensions._done.clear()
    extensions._done.update(done)
    sys.path[:] = path
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


# A whole package ------------------------------------------------------------------------------------

CELLS = (
    "jax/pure_callback_unrolled/vmap/acme-1dev",
    "jax/pure_callback/twice.jit/acme-1dev",
    "jax/pure_callback/case.acme_runs_again.jit/acme-1dev",
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of docs/vendors.md, with a plugin of its own."""
    table = tomllib.loads(on_the_page("pyproject.toml"))
    groups = table["project"]["entry-points"]
    # What the modules of the platform add, entry points do not add again.
    groups = {name: points for name, points in groups.items() if name.endswith(("jax_plugins", "platforms"))}
    # Without what no CPU can have.
    own = [line for line in on_the_page("acme.toml").splitlines() if not line.startswith(("version", "xla_flags"))]
    files = {
        "acme.toml": "\n".join(own).replace("acme_npu", "cpu"),
        "acme_known.toml": "",
        "acme_platform.py": on_the_page("acme_platform.py"),
        "acme_plugin.py": PLUGIN,
        "acme_suite.py": SUITE,
    }
    return installed(tmp_path / "site", groups, files)


def test_a_package_adds_a_platform_and_its_cells(tmp_path: Path, package: Path) -> None:
    """Planning, the worker and the report know the same; the claims are judged, and one is not tested."""
    asked = [f"--cell={cell}" for cell in CELLS]
    ended = run(tmp_path, "--platform", "acme", *asked, PYTHONPATH=f"{ROOT}:{package}", XLA_FLAGS="")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = report_in(tmp_path / "results", "acme")
    assert verdicts(report) == dict.fromkeys(CELLS, "pass")
    assert report["claims"] == [
        {"name": "ordered", "verdict": "not tested", "cells": 0, "failed": []},
        {"name": "hostcb:call", "verdict": "not tested", "cells": 0, "failed": []},
    ]
    assert "claimed capability `ordered`: no cell of this run tested it" in ended.stdout


def test_the_suite_has_two_names(tmp_path: Path, package: Path) -> None:
    """A module that imports `hostcb_conformance` gets the classes of the suite that runs as `conformance`."""
    (package / "acme_suite.py").write_text(SUITE.replace("from conformance.", "from hostcb_conformance."))
    use(package)
    assert parse_cell(CELLS[0]).callback_name == "pure_callback_unrolled"
    assert parse_cell(CELLS[2]).promises == ("X2",)
    assert sys.modules["acme_suite"].case is importlib.import_module("conformance.cases.harness.case").case


def test_a_file_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    environment = Topology("acme", 1).environment({"XLA_FLAGS": "--xla_acme=0", "HOME": "/h"})
    own = {"JAX_PLATFORMS": "acme,cpu", "XLA_FLAGS": "--xla_acme=0", "ACME_LOG": "quiet"}
    assert environment == own | {"HOME": "/h"}
    with pytest.raises(ConflictingOptionsError, match=r"-n 3: at most 2 process\(es\) may have the devices of acme"):
        workers_of(3, "acme")


# What cannot be used.


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an error in the options."""
    assert main(["list", "-k", "no such cell", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ERROR: ")
    return line


def test_wrong_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_wrong_entry_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], group: str, source: str, named: str
) -> None:
    group = f"hostcb_conformance.{group}"
    use(installed(tmp_path, {group: {"acme": "acme_one:FOUND"}}, {"acme_one.py": source}))
    line = error_of(capsys, "--platform", "acme", "--devices", "1")
    assert f"the entry point acme = 'acme_one:FOUND' in the group {group} of acme-conformance 1.0" in line
    assert named in line
