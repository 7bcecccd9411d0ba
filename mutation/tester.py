"""Runs tests one at a time in this process, as their ids come, and reports each before and after.

It reads commands from its standard input and writes reports to its original standard output, as a worker of the suite
does for cells. What the test and pytest print goes to standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import hypothesis  # noqa: F401  # tests/conftest.py does; a fork of a process that has imported it is quicker
import pytest

from conformance.oracle.verdicts import Outcome, Verdict
from conformance.reports.journal import Journal, lines_of
from conformance.worker.processes import end_with_parent

from .lines import hostcb_lines
from .overlay import PROJECT

ARGUMENTS = (
    *("-q", "-c", str(PROJECT / "pyproject.toml"), "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="),
    # The process that forks has imported the plugins' packages.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


class Failures:
    """How the tests of a run of pytest have failed, or their file; the first one in a few words."""

    def __init__(self) -> None:
        self.first = ""
        self.collected = False
        """Whether pytest looked for the test; it does not if a mutant breaks the import of `tests/conftest.py`."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        self.collected = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and not self.first:
            self.first = _words(report)


def _words(report: pytest.CollectReport | pytest.TestReport) -> str:
    lines = report.longreprtext.splitlines()
    said = [line[2:] for line in lines if line.startswith("E  ")] or lines or ["no words"]
    return " ".join(said[0].split())[:300]


class Recorder:
    """Runs a file's tests that have not begun, and writes a line for each, while `hostcb_lines` writes what they reach.

    What the file itself does, and its fixtures that several tests share, belongs to the file.
    """

    def __init__(self, file: str, ended: Path) -> None:
        self._file = file
        self._begun = {line["id"] for line in lines_of(ended, "id")}
        self._ended = Journal(ended)
        self._test = file
        self._why = ""
        self._shared = 0.0
        """The seconds that the fixtures took that several tests share."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        hostcb_lines.begin(self._file)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._begun]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._test, self._why = item.nodeid, ""
        # In case the process does not live to say more.
        self._write(left_out="it ended its process, or did not end")
        hostcb_lines.begin(item.nodeid)
        # A test that runs alone sets up the fixtures that it shares, too.
        started, shared = time.monotonic(), self._shared
        result = yield
        if self._why:
            self._write(left_out=self._why)
        else:
            self._write(seconds=shared + time.monotonic() - started)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        hostcb_lines.begin(self._file)
        started = time.monotonic()
        try:
            return (yield)
        finally:
            self._shared += time.monotonic() - started
            hostcb_lines.begin(self._test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._why = self._why or f"{report.outcome}: {_words(report)}"

    def _write(self, **what: object) -> None:
        self._ended.write(id=self._test, **what)


def run_test(test: str, plugins: Sequence[object] = ()) -> Outcome:
    failures = Failures()
    status = pytest.main([*ARGUMENTS, test], [failures, *plugins])
    if status == pytest.ExitCode.OK:
        return Outcome(Verdict.PASS)
    none = status in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED)
    if none and failures.collected and not failures.first:
        return Outcome(Verdict.HARNESS_ERROR, reason=f"{test} is no test, perhaps with these parameters")
    return Outcome(Verdict.FAIL, reason=failures.first or f"pytest ended with {int(status)}")


def main(plugins: Callable[[], Sequence[object]] = tuple) -> None:
    """`plugins` is called before hostcb is imported."""
    end_with_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.chdir(PROJECT)
    commands = os.fdopen(os.dup(0))
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)

    def report(**event: Any) -> None:
        print(json.dumps(event), file=reports)

    added = plugins()
    report(event="ready", run_info={})
    for line in commands:
        test = json.loads(line)["cell"]
        outcome = run_test(test, added)
        sys.stdout.flush()
        report(event="end", cell=test, outcome=outcome.as_json())
