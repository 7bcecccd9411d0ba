"""What a release needs: the fragments of the changelog, and a tag that fits."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from support.subprocesses import ROOT

import hostcb

sys.path.insert(0, str(ROOT / "ci"))

import check_tag

with (ROOT / "pyproject.toml").open("rb") as file:
    PYPROJECT = tomllib.load(file)

SUITE = tomllib.loads((ROOT / "conformance" / "pyproject.toml").read_text())["project"]

TOWNCRIER = PYPROJECT["tool"]["towncrier"]


def test_each_fragment_has_a_known_kind_and_words() -> None:
    kinds = "|".join(kind["directory"] for kind in TOWNCRIER["type"])
    for path in (ROOT / TOWNCRIER["directory"]).iterdir():
        if path.name in TOWNCRIER["ignore"]:
            continue
        assert re.fullmatch(rf"[a-z0-9][a-z0-9-]*\.({kinds})(\.[0-9]+)?\.md", path.name), path.name
        words = path.read_text()
        assert words.strip(), f"{path.name} is empty"
        assert not words.startswith("- "), f"{path.name} begins with a bullet, which towncrier adds"


def test_the_page_about_fragments_names_all_kinds() -> None:
    text = (ROOT / TOWNCRIER["directory"] / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [kind["directory"] for kind in TOWNCRIER["type"]]


def test_the_changelog_has_the_place_for_new_entries_once() -> None:
    assert (ROOT / TOWNCRIER["filename"]).read_text().count(TOWNCRIER["start_string"]) == 1


def checkout(folder: Path, version: str = "1.2.3", changelog: str = "## 1.2.3 (2026-11-24)\n") -> Path:
    for name, text in ((check_tag.VERSION, f'"""The version."""\n\n__version__ = "{version}"\n'),):
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    (folder / check_tag.CHANGELOG).write_text(f"# Changelog\n\n{changelog}")
    (folder / check_tag.FRAGMENTS).mkdir()
    (folder / check_tag.FRAGMENTS / "README.md").touch()
    return folder


def test_a_tag_of_the_version_is_right(tmp_path: Path) -> None:
    found = check_tag.check("v1.2.3", checkout(tmp_path))
    assert found == "v1.2.3 is the version of hostcb/_version.py, and in CHANGELOG.md since 2026-11-24"


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.30", "v1.2.3rc1", ""])
def test_another_tag_is_refused(tag: str, tmp_path: Path) -> None:
    with pytest.raises(check_tag.WrongTagError, match=r"v1\.2\.3"):
        check_tag.check(tag, checkout(tmp_path))


@pytest.mark.parametrize(
    ("changelog", "reason"),
    [
        ("## 1.2.2 (2026-10-01)\n", r"has no line `## 1\.2\.3 \(DATE\)`"),
        ("## 1.2.3 (unreleased)\n", r"has no line `## 1\.2\.3 \(DATE\)`"),
        ("## 1.2.3 (2026-11-24)\n\n## 1.2.3 (unreleased)\n", "has a section that is called unreleased"),
    ],
)
def test_a_changelog_without_the_version_is_refused(changelog: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(check_tag.WrongTagError, match=reason):
        check_tag.check("v1.2.3", checkout(tmp_path, changelog=changelog))


def test_fragments_that_are_left_are_refused(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    (folder / check_tag.FRAGMENTS / "stats.added.md").touch()
    with pytest.raises(check_tag.WrongTagError, match=r"stats\.added\.md"):
        check_tag.check("v1.2.3", folder)


def test_a_file_without_a_version_is_refused(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    (folder / check_tag.VERSION).write_text("")
    with pytest.raises(check_tag.WrongTagError, match="__version__"):
        check_tag.check("v1.2.3", folder)


def test_the_version_is_read_of_this_checkout() -> None:
    assert check_tag.version(ROOT) == hostcb.__version__


def test_the_suite_has_the_version_and_the_license_of_the_library() -> None:
    assert SUITE["version"] == hostcb.__version__
    assert (ROOT / "conformance" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_suite_needs_the_library_of_its_version_and_what_a_checkout_installs_for_it() -> None:
    groups = PYPROJECT["dependency-groups"]
    assert [f"hostcb=={hostcb.__version__}", *groups["cells"]] == SUITE["dependencies"]
    assert groups["releases"] == SUITE["optional-dependencies"]["releases"]


def test_a_reference_for_papers_has_the_version_and_the_license() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert {f"version: {hostcb.__version__}", f"license: {PYPROJECT['project']['license']}"} <= {*lines}
