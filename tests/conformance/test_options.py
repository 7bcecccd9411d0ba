"""Bad options: a sentence and exit code 2 at once. The help, the pages, and what needs no JAX."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from results_fakes import LOST, PASSED, write, write_run
from suite_runs import Capture, Patch, ran
from support import pages

from conformance.cli import commands, helping
from conformance.engine import preparation
from conformance.spec.package import COMMAND

CELL = "hostcb/call/jit/cpu-1dev"


def refused(capsys: Capture, *arguments: str) -> str:
    """The sentence with which a command line is refused."""
    try:
        code: Any = commands.main(arguments)
    except SystemExit as ending:
        code = ending.code
    said = capsys.readouterr()
    assert code == 2, said.out + said.err
    assert "Traceback" not in said.err
    return said.err.strip().splitlines()[-1]


BAD = {
    "run --platform ''": "''",
    "run --devices 0": "--devices",
    "run --devices cpu-2dev+x64": "cpu-2dev+x64",
    "run --shard 4/3": "'4/3'",
    "run --repeat 0": "--repeat",
    "run --smoke --full": "--smoke and --full",
    f"run --cell {CELL} --platform cuda": "--platform",
    f"run --cell {CELL} --devices 1": "--devices",
    "run --cell @/dev/null": "/dev/null",
    f"run --cell {CELL} -k call -k no_such_cell": "ERROR: -k 'no_such_cell' matches no cell",
    "mutants -k no_such_mutant": "no_such_mutant",
    "bisect --script nowhere.py": "nowhere.py",
    "bisect 'jax and scan'": "bisect -k 'jax and scan'`",
    f"bisect {CELL} --good 0.6.0 --bad 0.4.1": "0.4.1",
}


def test_bad_values_are_refused_at_once(capsys: Capture, monkeypatch: Patch, tmp_path: Path) -> None:
    """In a line that names the option or the value, before any cell is planned."""

    def planned(*_: Any) -> Any:
        raise AssertionError("the bad option was only seen after the cells were planned")

    # The commands import what calls it, so this name alone is looked up when they run.
    with monkeypatch.context() as planning:
        planning.setattr(preparation, "planned", planned)
        planning.chdir(tmp_path)
        for line, named in BAD.items():
            assert named in refused(capsys, *shlex.split(line)), line
            assert line.startswith("bisect") or [*tmp_path.iterdir()] == []


def test_commands_on_pages_and_in_the_help_are_accepted() -> None:
    """Where a page has K or N, they have a number."""
    found: dict[str, list[str]] = {}
    for page in pages.pages():
        for _, part in pages.parts(page):
            text = part.text if isinstance(part, pages.Block) else "\n".join(re.findall(r"`([^`]+)`", part))
            for command in re.findall(r"(?:python -m conformance|hostcb-conformance) ([^`\n]*)", text):
                line = re.sub(r"(?<=[ /])[KN]\b", "2", command)
                # What follows is the shell's.
                found[command] = shlex.split(re.split(r" (?:>>?|&&|;) |; ", line)[0], comments=True)
    for name in commands.COMMANDS:
        (chosen,) = (one for one in commands.parser_for(name)._actions if isinstance(one, argparse._SubParsersAction))
        examples = chosen.choices[name].epilog.split(helping.EXAMPLES)[1].split(helping.CODES)[0]
        for line in filter(None, map(str.strip, examples.splitlines())):
            found[line] = shlex.split(line.removeprefix(f"{COMMAND} "))
    # A sentence names this one without the value of its last option.
    whole = {c: words for c, words in found.items() if c != "bisect --script" and not {"...", "…", "-h"} & {*words}}
    assert len(whole) > 30
    for command, words in whole.items():
        assert commands.parsed(words).command == words[0], command


OF_PYTEST = ("engine.pytest_cells.plugin", "engine.execution", "worker.process_group", "minimising.failures")
WITHOUT_JAX = """\
import contextlib, importlib, io, json, sys
sys.modules["jax"] = None
from conformance.cli import commands
asked, modules = map(json.loads, sys.argv[1:])
for words in asked:
    sys.argv = ["conformance", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        try:
            code = commands.script()
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), error.getvalue()]))
for name in modules:
    importlib.import_module(f"conformance.{name}")
"""


@pytest.mark.contract("C1", "C45", "C70")
def test_what_needs_no_jax_imports_none(tmp_path: Path) -> None:
    """The help of each command, and whole commands that read results; another one says how to get JAX.

    Importing it takes a second and changes a process: those of pytest import none either.
    """
    write(tmp_path, PASSED, LOST)
    assert commands.main(["bundle", str(write_run(tmp_path / "bundled"))]) == 0
    helps = [["-h"], ["--version"], *([name, "-h"] for name in commands.COMMANDS)]
    report = ["report", ".", "--html=page.html", "--markdown=page.md"]
    whole = [report, ["diff", ".", f"b={tmp_path}"], ["expect", "."], ["verify", "bundled/bundle.zip"]]
    asked = [*helps, *whole, ["run", "--smoke"]]
    ended = ran(tmp_path, sys.executable, "-c", WITHOUT_JAX, json.dumps(asked), json.dumps(OF_PYTEST))
    assert ended.returncode == 0, ended.stderr
    *found, last = map(json.loads, ended.stdout.splitlines())
    assert [(code, error) for code, _, error in found] == [(0, "")] * len(found)
    assert all(name in printed for name, (_, printed, _) in zip(commands.COMMANDS, found[2:], strict=False))
    assert (tmp_path / "page.html").exists() and (tmp_path / "page.md").exists()
    assert last[0] == 2 and "pip install jax" in last[2]
