"""Runs tests that libraries ship, with JAX's own callbacks and under hostcb: `python examples/libraries/own_tests.py`.

Tests are taken from the installed package, or from its sdist where the package has none; nothing in them is changed.
Prints the table of docs/libraries.md, and exits with 1 if a test passes one way alone. Arguments choose libraries.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suites import SUITES, Suite

HERE = Path(__file__).parent
SECONDS = 900
ENDED = (0, 1)
"""The statuses of a pytest that ran all tests: all passed, or some failed."""
HEAD = (
    "| library | JAX | tests | with callbacks | passed with JAX's own | passed under hostcb | what they exercise |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True)
class Result:
    """The outcome of one test, as `record_tests` writes it."""

    outcome: str
    callbacks: int
    """How many of them hostcb ran."""


def read(lines: Iterable[str]) -> dict[str, Result]:
    """The results of a run by the names of the tests."""
    results = {}
    for line in lines:
        fields = json.loads(line)
        test = fields.pop("test")
        results[test] = Result(**fields)
    return results


def differences(suite: Suite, own: Mapping[str, Result], ours: Mapping[str, Result]) -> list[str]:
    """One line for each test whose outcomes differ, but for those that the suite names as such.

    The outcome of a test that is in one run alone is "missing".
    """
    missing = Result("missing", 0)
    found = []
    for test in sorted({*own, *ours, *suite.differ}):
        before, after = own.get(test, missing).outcome, ours.get(test, missing).outcome
        if before != after and test not in suite.differ:
            found.append(f"{test}: {before} with JAX's own callbacks, {after} under hostcb")
        if before == after and test in suite.differ:
            found.append(f"{test}: {after} both ways; remove it from `differ` in examples/libraries/suites.py")
    if not any(result.callbacks for result in ours.values()):
        found.append("hostcb ran no callback in any test; the library has other tests now, or installed nothing")
    return found


def row(suite: Suite, version: str, own: Mapping[str, Result], ours: Mapping[str, Result]) -> str:
    """The line of the table."""
    jax = importlib.metadata.version("jax")
    calling = sum(result.callbacks > 0 for result in ours.values())
    passed = [sum(result.outcome == "passed" for result in results.values()) for results in (own, ours)]
    return f"| {suite.library} {version} | {jax} | {len(ours)} | {calling} | {passed[0]} | {passed[1]} | {suite.what} |"


def unpack(sdist: Path, folder: str, where: Path) -> Path:
    """Unpack one folder of an sdist, without the package beside it, and return where it is now."""
    with tarfile.open(sdist) as archive:
        chosen = [each for each in archive.getmembers() if Path(each.name).parts[1:2] == (folder,)]
        if hasattr(tarfile, "data_filter"):
            archive.extractall(where, chosen, filter="data")
        else:
            # Python before 3.11.4. The sdist is the one that pip would install.
            archive.extractall(where, chosen)
    assert chosen, f"{sdist.name} has no folder {folder!r}: change `sdist` of it in examples/libraries/suites.py"
    return where / Path(chosen[0].name).parts[0]


def tests_of(suite: Suite, version: str, where: Path) -> Path:
    """The folder from which the suite's paths start."""
    if not suite.sdist:
        return Path(str(importlib.metadata.distribution(suite.library).locate_file("")))
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", suite.library]
    subprocess.run([*download, "-d", str(where), f"{suite.library}=={version}"], check=True)
    return unpack(next(where.glob("*.tar.gz")), suite.sdist, where)


def run(suite: Suite, root: Path, install: bool) -> dict[str, Result]:
    """Run the tests of a library in a process of their own.

    Raises:
        RuntimeError: pytest did not run all tests.
    """
    variables = {name: value for name, value in os.environ.items() if name != "HOSTCB_INSTALL"}
    variables |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE), **({"HOSTCB_INSTALL": "1"} if install else {})}
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "record.jsonl")
        # Without this project's options and the library's own, which may ask for plugins.
        options = ("-q", "-c", os.devnull, f"--rootdir={root}", "-p", "no:cacheprovider", "-p", "record_tests")
        command = [sys.executable, "-m", "pytest", *options, "--record", str(record), *suite.arguments]
        command += [str(root / test) for test in suite.tests]
        ended = subprocess.run(
            command, cwd=scratch, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if ended.returncode not in ENDED:
            raise RuntimeError(f"pytest exited with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
        return read(record.read_text().splitlines())


def compare(suite: Suite) -> list[str]:
    """Run the tests of a library both ways, print their line of the table, and return what differs."""
    version = importlib.metadata.version(suite.library)
    with tempfile.TemporaryDirectory() as folder:
        root = tests_of(suite, version, Path(folder))
        own, ours = run(suite, root, install=False), run(suite, root, install=True)
    print(row(suite, version, own, ours), flush=True)
    return differences(suite, own, ours)


def chosen(names: Sequence[str], jax: str) -> list[Suite]:
    """The suites of these libraries; those that run with any JAX if there is no name.

    Raises:
        ValueError: there is no such suite, or it needs another JAX than this.
    """
    suites = {suite.library: suite for suite in SUITES}
    for name in names:
        if name not in suites:
            raise ValueError(f"no suite is of {name}; there are: {', '.join(suites)}")
        if suites[name].jax not in ("", jax):
            raise ValueError(f"the tests of {name} run with JAX {suites[name].jax}, and JAX {jax} is installed")
    return [suites[name] for name in names] or [suite for suite in SUITES if not suite.jax]


def main() -> int:
    suites = chosen(sys.argv[1:], importlib.metadata.version("jax"))
    print(HEAD)
    failed = False
    for suite in suites:
        for line in compare(suite):
            failed = True
            print(f"{suite.library}: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
