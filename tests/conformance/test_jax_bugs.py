"""The reports of docs/jax-bugs/: their programs do what the pages say, and each known failure of the CPU has one."""

from __future__ import annotations

from importlib.metadata import version

import jax_bugs
import pytest
from jax_bugs import Ended, Report

from conformance.expectations.entries import read_entries
from conformance.spec.versions import version_matches

pytestmark = pytest.mark.contract("C67")

JAX = version("jax")
NAMES = [report.name for report in jax_bugs.reports()]

PLANTED = Report("planted", "A bug", "`io_callback`", "hang", "0.4.31", (">=0.9,<0.11", ">=0.12"), "fail", "came: 1")


@pytest.fixture(scope="module")
def ends() -> dict[str, Ended]:
    """The ends of all programs, by the names of the reports."""
    return dict(zip(NAMES, jax_bugs.run(jax_bugs.reports(), JAX), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("report", jax_bugs.reports(), ids=NAMES)
def test_what_its_program_does(report: Report, ends: dict[str, Ended]) -> None:
    assert not (complaint := report.complaint(JAX, ends[report.name])), complaint


def test_the_pages_have_their_programs() -> None:
    assert sorted(path.stem for path in jax_bugs.FOLDER.glob("*.py")) == NAMES
    for report in jax_bugs.reports():
        assert f"({report.program.name})" in report.page.read_text(encoding="utf-8"), report.name
    page = jax_bugs.INDEX.read_text(encoding="utf-8")
    assert page == jax_bugs.with_table(page, jax_bugs.table()), f"run `{jax_bugs.COMMAND} --write`"


def test_each_known_failure_has_a_public_link_or_a_report() -> None:
    """Also those of other platforms and releases."""
    links, known = jax_bugs.entries_by_link(), {report.link for report in jax_bugs.reports()}
    private = {link: cells for link, cells in links.items() if not link.startswith("https://")}
    assert private.keys() == known, private
    for path in jax_bugs.EXPECTATIONS.glob("*.toml"):
        for entry in read_entries(path.read_text(encoding="utf-8"), path.name):
            assert not entry.link.startswith("docs/") or entry.link in known, f"{path.name}: {entry.link}"


def test_a_known_failure_is_expected_of_the_releases_that_its_page_names() -> None:
    entries = read_entries((jax_bugs.EXPECTATIONS / "cpu.toml").read_text(encoding="utf-8"), "cpu.toml")
    for report in jax_bugs.reports():
        for jax in ("0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.12.0.1"):
            expected = any(version_matches(jax, each.jax) for each in entries if each.link == report.link)
            assert expected is report.affects(jax), f"{report.name}: JAX {jax}"


def test_judgement() -> None:
    for jax, ended, complaint in (
        ("0.10.2", Ended(1, "came: 1\n"), ""),
        ("0.10.2", Ended(0, "came: 2\n"), "cured"),
        ("0.10.2", Ended(1, "ImportError\n"), "expected 'fail'"),
        ("0.10.2", Ended(-6, "came: 1\n"), "ended with 'crash'"),
        ("0.10.2", Ended(None, "came: 1\n"), "ended with 'hang'"),
        ("0.10.2", Ended(125, ""), "cannot be tested"),
        ("0.11.1", Ended(0, ""), ""),
        ("0.11.1", Ended(1, "came: 1\n"), "no bug of JAX 0.11.1"),
        ("0.12.3", Ended(0, ""), "cured"),
    ):
        found = PLANTED.complaint(jax, ended) or ""
        assert complaint in found and bool(found) is bool(complaint)
