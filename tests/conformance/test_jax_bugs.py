"""The reports of docs/jax-bugs/: their programs do what the pages say, and each known failure of the CPU has one."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from importlib.metadata import version
from pathlib import Path

import jax_bugs
import pytest
from jax_bugs import Ended, Report

from conformance.expectations.entries import read_entries

pytestmark = pytest.mark.contract("C67")

JAX = version("jax")
NAMES = [report.name for report in jax_bugs.reports()]
LONGEST = 40

PLANTED = Report("planted", "A bug", "`io_callback`", "hang", "0.4.31", (">=0.9,<0.11", ">=0.12"), "fail", "came: 1")


@pytest.fixture(scope="module")
def ends() -> dict[str, Ended]:
    """The ends of all programs, by the names of the reports."""
    return dict(zip(NAMES, jax_bugs.run(jax_bugs.reports(), JAX), strict=True))


@pytest.fixture(params=jax_bugs.reports(), ids=NAMES)
def report(request: pytest.FixtureRequest) -> Report:
    found: Report = request.param
    return found


def test_what_its_program_does(report: Report, ends: dict[str, Ended]) -> None:
    assert not (complaint := report.complaint(JAX, ends[report.name])), complaint


def test_its_page_has_its_program(report: Report) -> None:
    page = report.page.read_text(encoding="utf-8")
    written = jax_bugs.with_program(page, report.program.read_text(encoding="utf-8"))
    assert page == written, f"run `{jax_bugs.COMMAND} --write`"


def test_its_program_is_short_and_of_jax_alone(report: Report) -> None:
    source = report.program.read_text(encoding="utf-8")
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    roots = {module.partition(".")[0] for module in modules}
    assert roots - sys.stdlib_module_names <= {"jax", "numpy"}
    assert len(source.splitlines()) <= LONGEST
    assert "expected" in source


def test_each_program_has_a_page() -> None:
    assert sorted(path.stem for path in jax_bugs.FOLDER.glob("*.py")) == NAMES


def test_the_table_of_the_first_page() -> None:
    page = jax_bugs.INDEX.read_text(encoding="utf-8")
    assert page == jax_bugs.with_table(page, jax_bugs.table()), f"run `{jax_bugs.COMMAND} --write`"


def test_each_known_failure_has_a_public_link_or_a_report() -> None:
    links = jax_bugs.entries_by_link()
    private = {link: cells for link, cells in links.items() if not link.startswith("https://")}
    assert private.keys() == {report.link for report in jax_bugs.reports()}, private


def test_links_of_other_platforms_and_releases_lead_to_reports() -> None:
    known = {report.link for report in jax_bugs.reports()}
    for path in jax_bugs.EXPECTATIONS.glob("*.toml"):
        for entry in read_entries(path.read_text(encoding="utf-8"), path.name):
            assert not entry.link.startswith("docs/") or entry.link in known, f"{path.name}: {entry.link}"


@pytest.mark.parametrize(
    ("jax", "ended", "complaint"),
    [
        ("0.10.2", Ended(1, "came: 1\n"), None),
        ("0.10.2", Ended(0, "came: 2\n"), "cured"),
        ("0.10.2", Ended(1, "ImportError\n"), "expected 'fail'"),
        ("0.10.2", Ended(-6, "came: 1\n"), "ended with 'crash'"),
        ("0.10.2", Ended(None, "came: 1\n"), "ended with 'hang'"),
        ("0.10.2", Ended(125, ""), "cannot be tested"),
        ("0.10.2", Ended(3, "came: 1\n"), "exit status 3"),
        ("0.11.1", Ended(0, ""), None),
        ("0.11.1", Ended(125, ""), None),
        ("0.11.1", Ended(1, "came: 1\n"), "no bug of JAX 0.11.1"),
        ("0.11.1", Ended(-11, ""), "no bug of JAX 0.11.1"),
        ("0.12.3", Ended(0, ""), "cured"),
    ],
)
def test_judgement(jax: str, ended: Ended, complaint: str | None) -> None:
    found = PLANTED.complaint(jax, ended)
    assert found is None if complaint is None else complaint in (found or "")


def test_ends_of_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a process with an interpreter that ends as any other, and runs again only while it ends well."""
    monkeypatch.setattr(jax_bugs, "FOLDER", tmp_path)
    programs = {
        "well": "import atexit; atexit.register(print, 'over')",
        "bad": "raise SystemExit(1)",
        "raises": "import sys, os\nassert 'hostcb' not in sys.modules and 'PYTHONPATH' not in os.environ\n1 / 0",
        "killed": "import os, signal; os.kill(os.getpid(), signal.SIGABRT)",
        "hangs": "import threading; print('begun', flush=True); threading.Event().wait()",
        # In the second of four tries.
        "by_chance": "open('runs', 'a').write('x'); raise SystemExit(open('runs').read() == 'xx')",
    }
    for name, source in programs.items():
        (tmp_path / f"{name}.py").write_text(source)
    reports = [
        dataclasses.replace(PLANTED, name=name, affected=("",), tries=4, deadline=1.0 if name == "hangs" else 60.0)
        for name in programs
    ]
    ends = dict(zip(programs, jax_bugs.run(reports, JAX), strict=True))
    assert {name: ended.outcome for name, ended in ends.items()} == {
        "well": "absent",
        "bad": "fail",
        "raises": "fail",
        "killed": "crash",
        "hangs": "hang",
        "by_chance": "fail",
    }
    assert ends["well"].written == "over\n"
    assert "ZeroDivisionError" in ends["raises"].written
    assert ends["hangs"].written == "begun\n"
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_page_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert jax_bugs.main(["vmap-while-conditon"]) == 2
    assert capsys.readouterr().err == ("ERROR: 'vmap-while-conditon' is no page of docs/jax-bugs and not --write\n")


def test_the_readme_says_how_many_there_are() -> None:
    readme = (jax_bugs.PROJECT / "README.md").read_text(encoding="utf-8")
    said = re.search(r"\[(\d+) bugs and gaps of JAX\]\(docs/jax-bugs/README\.md\)", readme)
    assert said is not None and int(said[1]) == len(jax_bugs.reports())
