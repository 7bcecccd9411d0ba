"""The command `bisect`: the first release, or the first commit, in which a cell or a script behaves differently."""

from __future__ import annotations

import argparse
import tempfile
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..bisecting import findings
from ..bisecting.commits import Findings, Repository, search_commits
from ..bisecting.line import Line, LineOf, tell
from ..bisecting.search import change_in
from ..bisecting.subjects import CANNOT_TEST, Cells, Script, Subjects, counted
from ..engine.interrupts import terminated_like_interrupted
from ..engine.options import ConflictingOptionsError, positive
from ..releases.environments import Environment, Installer, Release, ReleaseError
from ..spec.errors import CommandError, words_of
from ..spec.versions import version_key
from .helping import add_command
from .release_options import add_options, cells_of, conditions, running

INTERRUPTED = 130

GOOD, BAD, STOP = 0, 1, 128
"""With `CANNOT_TEST`, what `git bisect run` understands of a step; it ends at 128."""

DESCRIPTION = """\
Find the first release of JAX, or with --repo the first commit, with another outcome: the verdict of a cell, its stage
and its kind of anomaly, or the exit code and the output of a script. Without ends, the whole range is searched from
both sides."""

MORE = """\
Of several cells, the first of 0, 3, 2, 1 that one of them has.
A script ends with 125 to say that this release cannot be tested.
With --step the codes are for `git bisect run`: 0 every run passes, 1 not, 125 cannot be tested, 128 the search ends."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "bisect",
        DESCRIPTION,
        [
            "jax/io_callback_ordered/scan/cpu-1dev --good 0.6.2 --bad 0.8.3",
            "-k 'jax and debug_callback and vmap'",
            "--script bug.py",
            "hostcb/call/scan/cpu-1dev --repo . --good v0.1 --bad HEAD",
        ],
        {
            0: "found: a release, a commit, or a range that holds it if what lies in it cannot be tested",
            1: "the ends do not differ, and no difference was seen between them",
            2: "bad input, no index, an end that cannot be tested, or only one release that can",
            3: "cannot tell: chance may explain what was seen",
            INTERRUPTED: "interrupted; --resume goes on",
        },
        MORE,
    )
    add = parser.add_argument
    add("cells", nargs="*", metavar="CELL", help="ids of cells")
    add("--script", type=Path, metavar="FILE", help="a Python program; its exit code and its output are the outcome")
    add("--good", metavar="END", help="a release like 0.6.2, or with --repo a revision")
    add("--bad", metavar="END", help="another one")
    add("--repo", type=Path, metavar="DIR", help="search the commits of this repository of hostcb or of JAX")
    add("--step", action="store_true", help="judge the checkout in the current folder, for `git bisect run`")
    add(
        "--runs",
        type=positive(int),
        default=1,
        metavar="N",
        help="run up to so often in each release, and compare rates",
    )
    add_options(parser, "results/bisect")


def main(options: argparse.Namespace) -> int:
    if options.step:
        return _step(options)
    if options.repo and not (options.good and options.bad):
        raise ConflictingOptionsError("--repo needs both ends: --good REV and --bad REV")
    subjects = _subjects(options)
    try:
        with running(options) as (installer, journal):
            line_of = partial(Line, subjects, options.runs, journal, f"{subjects.version}, {conditions(options)}")
            if options.repo:
                repository = Repository(options.repo)
                ends = repository.ends(options.good, options.bad)
                # The interpreter of a virtual environment is a link that must stay one.
                found = search_commits(line_of, subjects.names, repository, ends, Path(options.python).absolute())
            else:
                found = _in_releases(options, line_of, subjects.names, installer)
    except KeyboardInterrupt:
        tell(f"interrupted: {options.results} has the finished runs, and --resume goes on with them")
        return INTERRUPTED
    text = "\n\n".join(findings.report(*one) for one in found)
    print(text)
    (options.results / "findings.txt").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    return findings.exit_code([answer for answers, _, _ in found for answer in answers.values()])


def _subjects(options: argparse.Namespace) -> Subjects:
    if bool(options.script) == bool(options.cells or options.patterns):
        raise ConflictingOptionsError("give what to bisect: either cells, by CELL or -k EXPR, or --script FILE")
    if options.script:
        if not options.script.is_file():
            raise ConflictingOptionsError(f"there is no script {options.script}")
        return Script(options.script, options.deadline)
    return Cells(tuple(cells_of(options, options.cells)), options.deadline, options.results / "workers.log")


def _in_releases(
    options: argparse.Namespace, line_of: LineOf, subjects: Sequence[str], installer: Installer
) -> Findings:
    ends = sorted(filter(None, (options.good, options.bad)), key=lambda end: Release.parse(end).order)
    first, last = ends if len(ends) == 2 else ("", "".join(ends))
    # An end that is not given is the last there is.
    if len(ends) == 1 and version_key(last) < version_key(next(installer.published())):
        first, last = last, ""
    releases = installer.between(first, last)
    labels = [release.label for release in releases]
    line = line_of(labels, lambda index: installer.environment(releases[index]))
    named = [index for index, release in enumerate(releases) if release.jax in ends]
    return [(*line.search(change_in(len(releases), named), subjects), labels)]


def _step(options: argparse.Namespace) -> int:
    """Judge the checkout in the current folder by whether every run passes."""
    try:
        if options.repo or options.good or options.bad:
            raise ConflictingOptionsError("--step judges one checkout, and `git bisect start` has the ends")
        # The current folder is a checkout of the user's.
        with terminated_like_interrupted(), tempfile.TemporaryDirectory() as folder:
            options.results = Path(folder)
            subjects = _subjects(options)
            environment = Environment.of(Path(options.python).absolute(), Path(folder) / "packages", Path.cwd())
            runs = dict.fromkeys(subjects.names, options.runs)
            samples = [sample for _, sample in subjects.run(environment, runs)]
        for words, number in counted(samples).items():
            tell(f"{number} x {words}")
        if any(sample.untestable for sample in samples):
            return CANNOT_TEST
        return GOOD if all(sample.passed for sample in samples) else BAD
    except KeyboardInterrupt:
        tell("interrupted: nothing is known of this commit")
    except ReleaseError as error:
        tell(f"this commit cannot be tested: {error}")
        return CANNOT_TEST
    except Exception as error:
        # Python's own exit code for this is that of a bad commit.
        if not isinstance(error, CommandError | OSError):
            traceback.print_exc()
        tell(f"ERROR: nothing is known of this commit: {words_of(error)}")
    return STOP
