#!/usr/bin/env python3
"""The reports of docs/jax-bugs/: a page and a program of JAX alone for each bug, and what the program does where it is.

Run as a program, it tries all of them with the installed JAX, and says which do not what their page says; with
`--write` it puts the table into the first page instead.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

TESTS = Path(__file__).parent
PROJECT = TESTS.parent
if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))

from conformance.expectations.entries import read_entries  # noqa: E402
from conformance.spec.versions import version_matches  # noqa: E402

FOLDER = PROJECT / "docs" / "jax-bugs"
INDEX = FOLDER / "README.md"
EXPECTATIONS = PROJECT / "conformance" / "expectations" / "platforms"
COMMAND = "python tests/jax_bugs.py"

ABSENT, UNTESTABLE = "absent", "cannot be tested"
OUTCOMES = {0: ABSENT, 1: "fail", 125: UNTESTABLE, None: "hang"}
"""The last is a program that was still running at its deadline. Signals are crashes, and other statuses are errors."""

DEADLINE = 120.0

_HEADER = re.compile(r"<!--\n(.*?)-->\n\n# ([^\n]+)\n", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Report:
    """One bug, as the head of its page has it."""

    name: str
    title: str
    callbacks: str
    kind: str
    """The effect on a program: "wrong value", "wrong order", "crash" and so on."""
    seen: str
    """The oldest and the newest release in which its program showed it, and exceptions between them."""
    affected: tuple[str, ...]
    """Versions, as `version_matches` reads them: any of these."""
    outcome: str
    shows: str
    """A part of what the program writes where the bug is."""
    tries: int = 1
    """More than one if the bug comes by chance."""
    deadline: float = DEADLINE
    """In seconds, where the bug is: a program that hangs there ends sooner without it."""

    @property
    def program(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def page(self) -> Path:
        return FOLDER / f"{self.name}.md"

    @property
    def link(self) -> str:
        """As an entry of `conformance/expectations/platforms` has it."""
        return self.page.relative_to(PROJECT).as_posix()

    def affects(self, jax: str) -> bool:
        return any(version_matches(jax, versions) for versions in self.affected)

    def complaint(self, jax: str, ended: Ended) -> str | None:
        """What contradicts the page in the end of its program with this version of JAX, if anything does."""
        came = f"its program ended with {ended.outcome!r}, and wrote:\n{ended.written[-2000:]}"
        if not self.affects(jax):
            return None if ended.outcome in (ABSENT, UNTESTABLE) else f"{self.name}: no bug of JAX {jax}, but {came}"
        if ended.outcome == ABSENT:
            return f"{self.name}: cured in JAX {jax}? In {self.tries} tries its program ended well; 'affected' has it"
        if ended.outcome != self.outcome or self.shows not in ended.written:
            return f"{self.name}: expected {self.outcome!r} with JAX {jax}, and {self.shows!r}, but {came}"
        return None


@dataclasses.dataclass(frozen=True)
class Ended:
    status: int | None
    written: str

    @property
    def outcome(self) -> str:
        return "crash" if (self.status or 0) < 0 else OUTCOMES.get(self.status, f"exit status {self.status}")


def read(page: Path) -> Report:
    found = _HEADER.match(page.read_text(encoding="utf-8"))
    assert found, f"{page.name} begins with a comment of TOML and a title"
    head = tomllib.loads(found[1])
    return Report(page.stem, found[2], **head | {"affected": tuple(head["affected"])})


@functools.cache
def reports() -> tuple[Report, ...]:
    return tuple(read(page) for page in sorted(FOLDER.glob("*.md")) if page != INDEX)


def run(chosen: Sequence[Report], jax: str) -> list[Ended]:
    """Run their programs with this Python's JAX, whose version is given: one JAX, imported once."""
    tasks = []
    for report in chosen:
        deadline, tries = (report.deadline, report.tries) if report.affects(jax) else (DEADLINE, 1)
        tasks.append({"path": str(report.program), "deadline": deadline, "tries": tries})
    # As a user's, and without hostcb: a program that imported it by mistake would fail.
    left_out = ("PYTHONPATH", "XLA_FLAGS", "NPROC", "PJRT_NPROC", "JAX_NUM_CPU_DEVICES")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    ended = subprocess.run(
        [sys.executable, "-P", str(TESTS / "programs" / "forked.py")],
        input=json.dumps(tasks),
        env=env | {"JAX_PLATFORMS": "cpu"},
        cwd=FOLDER,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"the process that runs the programs failed: {ended.stderr[-2000:]}"
    return [Ended(*pair) for pair in json.loads(ended.stdout)]


def with_table(page: str, lines: Iterable[str]) -> str:
    """The text of the first page with these lines as its table."""
    return re.sub(r"(?m)(^\|.*\n)+", lambda _: "".join(f"{line}\n" for line in lines), page, count=1)


def table() -> list[str]:
    """The lines of the first page's table."""
    lines = [
        "| bug | callbacks | effect | seen with JAX | known failure |",
        "| --- | --- | --- | --- | --- |",
    ]
    entries = entries_by_link()
    for report in reports():
        # Two entries may be of one cell with two ranges of releases.
        cells = ", ".join(f"`{entry}`" for entry in dict.fromkeys(entries.get(report.link, ())))
        name = f"[{report.title}]({report.page.name})"
        lines.append(f"| {name} | {report.callbacks} | {report.kind} | {report.seen} | {cells} |")
    return lines


def entries_by_link() -> dict[str, list[str]]:
    """The first glob of each known failure of the CPU, by the entry's link."""
    path = EXPECTATIONS / "cpu.toml"
    found: dict[str, list[str]] = {}
    for entry in read_entries(path.read_text(encoding="utf-8"), path.name):
        found.setdefault(entry.link, []).append(entry.cells[0])
    return found


def main(arguments: Sequence[str]) -> int:
    if arguments == ["--write"]:
        INDEX.write_text(with_table(INDEX.read_text(encoding="utf-8"), table()), encoding="utf-8")
        return 0
    if unknown := [name for name in arguments if name not in [report.name for report in reports()]]:
        print(f"ERROR: {unknown[0]!r} is no page of docs/jax-bugs and not --write", file=sys.stderr)
        return 2
    jax = version("jax")
    chosen = [report for report in reports() if not arguments or report.name in arguments]
    complaints = []
    for report, ended in zip(chosen, run(chosen, jax), strict=True):
        print(f"{report.name}: {ended.outcome} with JAX {jax}{'' if report.affects(jax) else ', as it should be'}")
        complaints += [complaint] if (complaint := report.complaint(jax, ended)) else []
    print(*complaints, sep="\n", file=sys.stderr)
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
