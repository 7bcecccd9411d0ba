"""Mutants that tests kill, since no conformance cell can ask a platform about them: `ci/mutation/checks.toml`.

Each names one test, which must pass with the unchanged source and fail with the mutant.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .overlay import PROJECT

FILE = PROJECT / "ci" / "mutation" / "checks.toml"
DEADLINE = 120.0


class ChecksError(Exception):
    """A list that cannot be used as it stands."""


def load(path: Path, known: Collection[str]) -> dict[str, str]:
    """The tests, by the id of the mutant."""
    if not path.exists():
        return {}
    try:
        entries = tomllib.loads(path.read_text()).get("checks", {})
    except tomllib.TOMLDecodeError as error:
        raise ChecksError(f"{path} is not TOML: {error}") from error
    for mutant, test in entries.items():
        if not isinstance(test, str) or not (PROJECT / test.partition("::")[0]).is_file() or "::" not in test:
            raise ChecksError(
                f"{path}: {mutant!r} needs a test, as tests/unit/test_aliases.py::test_name, not {test!r}"
            )
        if mutant not in known:
            raise ChecksError(f"{path}: the source has no mutant {mutant!r} any more; remove the entry")
    return entries


def is_test(killer: str) -> bool:
    """Whether a test has killed, and no cell: the id of a cell begins with its implementation."""
    return killer.startswith("tests/")


def failure(test: str, deadline: float = DEADLINE) -> str:
    """Run a test with this process's environment and path; return how it fails, in a few words, or nothing."""
    # pytest alone would put the project, and so the unchanged source, at the begin of the path.
    program = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", test)
    # In a session of its own, which has the processes that the test starts, too.
    with subprocess.Popen(
        program, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=deadline)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"no end in {deadline:g} s"
            raise
    if process.returncode == 0:
        return ""
    said = [line for line in stdout.splitlines() if line.startswith(("E  ", "FAILED", "ERROR"))]
    return " ".join((said or stderr.splitlines() or [f"exit status {process.returncode}"])[0].split())


def must_pass(tests: Iterable[str], workers: int = 1) -> None:
    """Raise ChecksError for a test that fails with the unchanged source. So many tests run at a time."""
    each = sorted(set(tests))
    with ThreadPoolExecutor(workers) as pool:
        try:
            for test, why in zip(each, pool.map(failure, each), strict=True):
                if why:
                    raise ChecksError(f"{FILE.name}: {test} fails without any mutant: {why}")
        finally:
            pool.shutdown(cancel_futures=True)
