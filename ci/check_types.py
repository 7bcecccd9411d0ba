"""Checks the types of an installed hostcb with mypy and pyright: `python ci/check_types.py PYTHON`.

PYTHON is the interpreter that has hostcb. The programs in tests/typed/accepted have no error, and run. In
tests/typed/mistakes.py the lines with a mark `# error: ...` have errors, and no others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from check_wheels import CHECKOUT, expect

MARK = re.compile(r"# error: \w")
# The file from the folder of the programs on, and the line.
Place = tuple[str, int]


def check(python: Path, folder: Path) -> None:
    """Copy the programs into a folder, where no checker finds the sources of the checkout, and check and run them."""
    programs = shutil.copytree(CHECKOUT / "tests" / "typed", folder / "typed")
    accepted, mistakes = sorted((programs / "accepted").glob("*.py")), programs / "mistakes.py"
    lines = mistakes.read_text(encoding="utf-8").splitlines()
    marked = {("mistakes.py", number) for number, line in enumerate(lines, 1) if MARK.search(line)}
    expect(bool(accepted and marked), f"there are no programs in {programs}")
    problems = []
    for checker, found in (("mypy", mypy(python, programs)), ("pyright", pyright(python, programs))):
        problems += [f"{checker} does not report {shown}" for shown in shown_places(programs, marked - found.keys())]
        for place in sorted(found.keys() - marked):
            problems.append(f"{checker} reports {':'.join(map(str, place))}: {found[place]}")
    expect(not problems, "\n".join(problems))
    for program in accepted:
        expect(run([str(python), str(program)], programs).returncode == 0, f"{program.name} fails")
    print(f"mypy and pyright accept {len(accepted)} programs and report {len(marked)} mistakes")


def shown_places(programs: Path, places: set[Place]) -> Iterator[str]:
    for name, number in sorted(places):
        yield f"{name}:{number}: {(programs / name).read_text(encoding='utf-8').splitlines()[number - 1]}"


def mypy(python: Path, programs: Path) -> dict[Place, str]:
    """The first error of each line, by mypy. It would refuse each call of a function of JAX without types."""
    options = ("--strict", "--untyped-calls-exclude=jax", "--config-file=", f"--cache-dir={os.devnull}")
    ended = checked(programs, "mypy", *options, f"--python-executable={python}", "--output=json", ".")
    found: dict[Place, str] = {}
    for each in map(json.loads, ended.splitlines()):
        if each["severity"] == "error":
            found.setdefault((Path(each["file"]).as_posix(), each["line"]), each["message"])
    return found


def pyright(python: Path, programs: Path) -> dict[Place, str]:
    """The first error of each line, by pyright."""
    report = json.loads(checked(programs, "pyright", f"--pythonpath={python}", "--outputjson", "."))
    found: dict[Place, str] = {}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            file = Path(each["file"]).resolve().relative_to(programs.resolve()).as_posix()
            found.setdefault((file, each["range"]["start"]["line"] + 1), each["message"])
    return found


def checked(programs: Path, checker: str, *arguments: str) -> str:
    """Return what a checker writes. It ends with 1 where it finds an error, as it must in the mistakes."""
    ended = run([sys.executable, "-m", checker, *arguments], programs)
    expect(ended.returncode == 1, f"{checker} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY", "HOSTCB_"))}
    variables = {**kept, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        check(Path(sys.argv[1]).absolute(), Path(temporary))
