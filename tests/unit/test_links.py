"""Each link of a page leads to a file or folder of the checkout, and to a heading that is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import pages

PAGES = pages.pages()


@pytest.mark.parametrize("page", PAGES, ids=pages.name_of)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = [
        f"line {line}: {target} {complaint}"
        for line, target in pages.links(page)
        if (complaint := pages.complaint(page, target))
    ]
    assert not wrong, f"{pages.name_of(page)}: " + "; ".join(wrong)


def test_pages_have_links_at_all() -> None:
    assert {"README.md", "docs/contract.md", "docs/start.md"} <= {pages.name_of(page) for page in PAGES}
    assert sum(len(pages.links(page)) for page in PAGES) > 200


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("other.md", None),
        ("other.md#the-smallest-one", None),
        ("other.md#again-1", None),
        ("#here", None),
        ("../tests", None),
        ("https://example.org/none#none", None),
        ("none.md", "is no file or folder"),
        ("other.md#largest", "has no heading for #largest"),
        ("other.md#in-a-block", "has no heading for #in-a-block"),
        ("#there", "has no heading for #there"),
        ("../../elsewhere.md", "leaves the checkout"),
    ],
)
def test_complaints(target: str, complaint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests").mkdir()
    page, other = tmp_path / "docs" / "page.md", tmp_path / "docs" / "other.md"
    page.write_text(f"# Here\n\n```\n[code](b)\n```\n\nA ![picture\nor link]({target}), and `no [link](a)`.\n")
    other.write_text("# The *smallest* one!\n\n```\n# In a block\n```\n\n## [Again](page.md)\n\n## Again\n")
    monkeypatch.setattr(pages, "PROJECT", tmp_path)
    assert pages.links(page) == [(7, target)]
    assert pages.complaint(page, target) == complaint
