"""Bad options: a sentence and exit code 2 at once. The help: a description, examples, defaults and exit codes."""

from __future__ import annotations

import argparse
import errno
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import commands, helping
from conformance.engine import preparation
from conformance.engine.journal import Journal
from conformance.reports.report import Report
from conformance.spec.package import COMMAND

CELL = "hostcb/call/jit/cpu-1dev"

WITHOUT_JAX = ("report", "diff", "merge", "expect", "bundle", "verify")

ENTRY = """
[[expect]]
cells = "jax/io_callback/jit/cpu-1dev"
verdict = "fail"
reason = "it does"
link = "none"
since = "2026-11-23"
"""


@pytest.fixture
def nothing_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(*_: Any) -> Any:
        raise AssertionError("the bad option was only seen after the cells were planned")

    # The commands import what calls it, so this name alone is looked up when they run.
    monkeypatch.setattr(preparation, "planned", planned)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence with which a command line is refused."""
    try:
        code: Any = commands.main(arguments)
    except SystemExit as ending:
        code = ending.code
    said = capsys.readouterr()
    assert code == 2, said.out + said.err
    assert "Traceback" not in said.err
    return said.err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--platform", ""], "'' is no name of a platform"),
        (["list", "--platform", "cuda,cpu"], "'cuda,cpu' is no name of a platform"),
        (["run", "--devices", "0"], "0 is not greater than 0"),
        (["run", "--devices", "1,cpu-2x4"], "is no list of device counts, like 1,8, nor of topologies"),
        (["run", "--devices", "cpu-1x4"], "is no topology of several processes"),
        (["run", "--devices", "cpu-2dev+x64"], "is no topology of several processes"),
        (["run", "--spread", "nowhere"], "'nowhere' is neither 'hosts' nor the address of a Dask scheduler"),
        (["run", "--full", "often"], "invalid int value: 'often'"),
        (["run", "--shard", "4/3"], "'4/3' is no shard: expected K/N with K from 1 to N"),
        (["run", "--repeat", "0"], "0 is not greater than 0"),
        (["mutants", "--deadline", "-1"], "-1 is not greater than 0"),
    ],
)
def test_bad_values_are_refused_at_once(
    capsys: pytest.CaptureFixture[str], nothing_is_planned: None, arguments: list[str], words: str
) -> None:
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENTRY.replace("[[expect]]", "[[expct]]"), "unknown key 'expct'; every entry begins with [[expect]]"),
        (ENTRY.replace("[[expect]]", "[expect]"), "'expect' is no list of tables"),
        ("expect = [1]", "'expect' is no list of tables"),
        (re.sub("cells = .*", "cells = 3", ENTRY), "'cells' is the id of a cell, or a glob, or a list of them, not 3"),
        (re.sub("cells = .*", "cells = []", ENTRY), "or a list of them, not []"),
        (re.sub("cells = .*", "cells = ['a', 3]", ENTRY), "or a list of them, not ['a', 3]"),
        (ENTRY.replace('"fail"', "7"), "'verdict' is a text in quotes, not 7"),
        (f"{ENTRY}jax = 0.12\n", "'jax' is a text in quotes, not 0.12"),
    ],
)
def test_a_mistyped_entry_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    said = refused(capsys, "run", "--cell", "hostcb/id_tap/jit/cpu-1dev", "--expectations", str(file))
    assert said.startswith(f"ERROR: {file}")
    assert words in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nraise RuntimeError('no\\n driver')", "raised RuntimeError: no driver ({file}, line 2)"),
        ("import no_such_package", "raised ModuleNotFoundError: No module named 'no_such_package' ({file}, line 1)"),
        ("x = (", "raised SyntaxError"),
        ("import sys\nsys.exit('no licence')", "raised SystemExit: no licence ({file}, line 2)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    text: str,
    words: str,
) -> None:
    name = f"unimportable_{abs(hash(request.node.name))}"
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = refused(capsys, "list", "--implementation", name)
    assert f"the import of {name} {words.format(file=file)}" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "repro", CELL, "--program", "/dev/full")
    assert (
        said == "ERROR: [Errno 28] No space left on device, while a file of this command was written: is its disk full?"
    )


def test_a_run_on_a_full_disk_says_what_it_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Journal, "write", full)
    monkeypatch.setattr(Report, "write", full)
    assert commands.main(["run", "-n", "1", "--cell", CELL, "--results", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "PROBLEM: a cell was not run: [Errno 28] No space left on device" in printed
    assert "conformance-cpu.json could not be written, so there are no results to read" in printed


def parser_of(name: str) -> argparse.ArgumentParser:
    whole = commands.parser_for(name)
    (chosen,) = (action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return chosen.choices[name]


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_help_describes_itself(name: str) -> None:
    parser = parser_of(name)
    assert parser.description
    assert parser.epilog
    examples, codes = parser.epilog.split(helping.EXAMPLES)[1].split(helping.CODES)
    assert re.search(r"^  0 +\w", codes, re.MULTILINE)
    assert [action.option_strings for action in parser._actions if not action.help] == []
    for example in filter(None, (line.strip() for line in examples.splitlines())):
        words = shlex.split(example.removeprefix(f"{COMMAND} "))
        assert commands.parsed(words).command == name, example


@pytest.mark.contract("C1")
@pytest.mark.parametrize("arguments", [["-h"], ["--version"], *([name, "-h"] for name in WITHOUT_JAX)], ids=" ".join)
def test_what_needs_no_jax_imports_none(arguments: list[str]) -> None:
    program = "import sys, runpy; sys.modules['jax'] = None; runpy.run_module('conformance', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
