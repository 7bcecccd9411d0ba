"""C60: what a cell or a test reaches is recorded in all threads and processes, and a test runs in a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutation import coverage
from mutation.coverage import IMPORT
from mutation.lines import hostcb_lines
from mutation.overlay import PROJECT

pytestmark = pytest.mark.contract("C60")


@pytest.mark.skipif(not hostcb_lines.can_record, reason="sys.monitoring is new in Python 3.12")
def test_lines_are_recorded_by_cell_in_every_thread(tmp_path: Path) -> None:
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").write_text("def one():\n    return 1\n\ndef two():\n    return 2\n")
    program = """
import io, json, sys, threading
from mutation.lines import hostcb_lines
hostcb_lines.start()
import toy
commands = [json.dumps({"do": "run", "cell": cell}) + "\\n" for cell in ("first", "second")]
for line in hostcb_lines.Commands(io.StringIO("".join(commands))):
    toy.one()
    if line == commands[1]:
        threading.Thread(target=toy.two).start()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(PROJECT)))}
    environment |= {hostcb_lines.FOLDER: str(tmp_path), hostcb_lines.PACKAGE: str(package)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    lines = {cell: {*numbers["__init__.py"]} for cell, numbers in coverage.read_lines(tmp_path).items()}
    assert lines == {IMPORT: {1, 4}, "first": {2}, "second": {2, 5}}


TESTS = """
import os, signal, time
import pytest
import toy

assert toy.at_import(1) == 1

@pytest.fixture(scope="module")
def shared():
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    return toy.of_a_fixture(2)

def test_first(shared):
    assert shared == 2

def test_that_fails():
    assert toy.one() == 2

def test_that_ends_the_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_second(shared):
    assert toy.one() == 1
"""
TOY = """
def at_import(x):
    return x
def of_a_fixture(x):
    return x
def one():
    return 1
"""


@pytest.mark.skipif(not hostcb_lines.can_record, reason="sys.monitoring is new in Python 3.12")
def test_lines_are_recorded_by_test(tmp_path: Path) -> None:
    """A test that fails, or ends the process, is left out; what the tests of a file share belongs to each of them."""
    package = tmp_path / "toy"
    # The folder of the tests comes before all others on the path.
    (tmp_path / "tests").mkdir()
    package.mkdir()
    (package / "__init__.py").write_text(TOY)
    path = tmp_path / "tests" / "test_toy.py"
    path.write_text(TESTS)
    program = f"""
from pathlib import Path
from mutation import recording
recording.PACKAGE = Path({str(package)!r})
recording.record([], [{str(path)!r}], Path({str(tmp_path / "lines.jsonl")!r}), 1)
"""
    ended = in_process(program, tmp_path)
    found = coverage.load(tmp_path / "lines.jsonl", package)
    of = {
        name.partition("::")[2]: sorted(one.lines["__init__.py"]) for name, one in found.reached.items() if "::" in name
    }
    assert all(one.seconds > 0.3 for name, one in found.reached.items() if "::" in name), "alone, each has the fixture"
    assert of == {"test_first": [2, 3, 4, 5, 6], "test_second": [2, 3, 4, 5, 6, 7]}, ended
    why = {name.partition("::")[2]: why for name, why in found.left_out.items()}
    assert why.keys() == {"test_that_fails", "test_that_ends_the_process"}
    assert why["test_that_fails"] == "failed: assert 1 == 2"


def test_a_test_fails_with_the_change_and_passes_without(tmp_path: Path) -> None:
    path = tmp_path / "test_toy.py"
    path.write_text("import os\ndef test_it():\n    assert 'MUTANT' not in os.environ\ndef test_other():\n    pass\n")
    program = f"""
import os
from pathlib import Path
from mutation.pool import Test
from mutation.running import Runner
with Runner(Path({str(tmp_path / "log")!r})) as runner:
    for name in ("it", "other", "gone"):
        print(runner.run(Test({str(path)!r} + "::test_" + name), 60.0).label)
    runner.end()
    os.environ["MUTANT"] = "1"
    print(runner.run(Test({str(path)!r} + "::test_it"), 60.0).reason)
"""
    printed = in_process(program, tmp_path).splitlines()
    assert printed[:3] == ["pass", "pass", "harness_error"]
    assert printed[3].startswith("AssertionError: assert 'MUTANT' not in")


def in_process(program: str, *path: Path) -> str:
    """What a process prints that has imported JAX and not hostcb, as the command line's does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PROJECT, *path)))}
    command = [sys.executable, "-P", "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
