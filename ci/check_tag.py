"""Checks that a tag names the version of this checkout, and that its changelog has it: `python ci/check_tag.py v0.1.0`.

The version is in `hostcb/_version.py`, which an sdist, a shallow clone and a folder without git have, too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
VERSION = "hostcb/_version.py"
CHANGELOG = "CHANGELOG.md"
FRAGMENTS = "changes"


class WrongTagError(Exception):
    """The tag, the version and the changelog do not agree."""


def version(folder: Path) -> str:
    found = re.search(r'^__version__ = "(.+)"$', (folder / VERSION).read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise WrongTagError(f'{VERSION} has no line `__version__ = "..."`')
    return found[1]


def check(tag: str, folder: Path = CHECKOUT) -> str:
    """Return what was found, in words."""
    number = version(folder)
    if tag != f"v{number}":
        raise WrongTagError(f"the tag is {tag!r}, and {VERSION} says {number}: the tag must be 'v{number}'")
    headings = re.findall(r"^## (\S+) \((.+)\)$", (folder / CHANGELOG).read_text(encoding="utf-8"), re.MULTILINE)
    dates = [when for which, when in headings if which == number and when != "unreleased"]
    if not dates:
        raise WrongTagError(
            f"{CHANGELOG} has no line `## {number} (DATE)`: `nox -s changelog -- --yes` writes one from {FRAGMENTS}/"
        )
    if "unreleased" in (when for _, when in headings):
        raise WrongTagError(
            f"{CHANGELOG} has a section that is called unreleased: move its entries into that of {number}"
        )
    left = sorted(path.name for path in (folder / FRAGMENTS).glob("*.*.md"))
    if left:
        raise WrongTagError(
            f"{FRAGMENTS}/ has {left}, which are not in {CHANGELOG}: `nox -s changelog -- --yes` moves them there"
        )
    return f"{tag} is the version of {VERSION}, and in {CHANGELOG} since {dates[0]}"


def main() -> int:
    if len(sys.argv) != 2:
        print("ERROR: give one tag, such as v0.1.0", file=sys.stderr)
        return 2
    try:
        print(check(sys.argv[1]))
    except WrongTagError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
