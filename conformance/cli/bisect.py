"""The command `bisect`: the first release, or the first commit, in which a cell or a script behaves differently."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from ..bisecting import findings
from ..bisecting.commits import Repository
from ..bisecting.line import search, tell
from ..bisecting.search import Kind, Samples
from ..bisecting.subjects import Cells, Sample, Script, Subjects
from ..engine.options import ConflictingOptionsError, positive
from ..expectations.entries import load_expectations
from ..releases.environments import Installer, Release, check_tools
from ..reports.journal import set_aside
from ..spec.package import COMMAND
from ..spec.versions import version_key
from .helping import add_command
from .release_options import add_options, between, cells_of, conditions, running

FINDINGS = "findings.txt"
INTERRUPTED = findings.CODES[Kind.UNFINISHED]

DESCRIPTION = """\
Find the first release of JAX, or with --repo the first commit, with another outcome: the verdict of a cell, its stage
and its kind of anomaly, or the exit code and the output of a script. Without ends, the whole range is searched from
both sides."""

MORE = """\
With several cells, each of them has a code: the command ends with the first of 130, 0, 3, 2, 1 that occurs.
A script ends with 125 to say that this release cannot be tested."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "bisect",
        DESCRIPTION,
        [
            "jax/io_callback_ordered/scan/cpu-1dev --good 0.6.2 --bad 0.8.3",
            "-k 'jax and debug_callback and vmap'",
            "--script bug.py",
            "hostcb/call/scan/cpu-1dev --repo . --good HEAD~20 --bad HEAD",
        ],
        {
            0: "found: a release, a commit, or a range that holds it if what lies in it cannot be tested",
            1: "the ends do not differ, and no difference was seen between them",
            2: "bad input, no index, an end that cannot be tested, or only one release that can",
            3: "cannot tell: chance may explain what was seen",
            INTERRUPTED: "interrupted; what is found so far is printed, and --resume goes on",
        },
        MORE,
    )
    add = parser.add_argument
    add("cells", nargs="*", metavar="CELL", help="ids of cells")
    add("--script", type=Path, metavar="FILE", help="a Python program; its exit code and its output are the outcome")
    add("--good", metavar="END", help="a release like 0.6.2, or with --repo a revision")
    add("--bad", metavar="END", help="another one")
    add("--repo", type=Path, metavar="DIR", help="search the commits of this repository of hostcb or of JAX")
    add(
        "--runs",
        type=positive(int),
        default=1,
        metavar="N",
        help="at most N runs in each release, whose rates of failure are compared",
    )
    add_options(parser, "results/bisect")


def main(options: argparse.Namespace) -> int:
    if options.repo and not (options.good and options.bad):
        raise ConflictingOptionsError("--repo needs both ends: --good REV and --bad REV")
    if options.good and options.good == options.bad:
        raise ConflictingOptionsError(f"--good and --bad are the same, {options.good}: nothing lies between them")
    if not options.repo:
        check_tools()
    try:
        subjects = _subjects(options)
        with running(options, Sample.from_json) as (installer, journal), contextlib.ExitStack() as stack:
            # They are those of the last bisection, whose runs are set aside as well.
            if (last := options.results / FINDINGS).exists() and not options.resume:
                set_aside(last)
            if options.repo:
                commits = Repository(options.repo).between(options.good, options.bad)
                tree = stack.enter_context(Repository(options.repo).worktree())
                # The interpreter of a virtual environment is a link that must stay one.
                make = partial(tree.environment, python=Path(options.python).absolute())
                line = {label: partial(make, commit) for commit, label in commits.items()}
                named = [0, len(line) - 1]
            else:
                releases = _releases(options, installer)
                line = {release.label: partial(installer.environment, release) for release in releases}
                named = [place for place, one in enumerate(releases) if one.jax in (options.good, options.bad)]
                # No other release runs before both named ones can be installed.
                for place in named:
                    installer.environment(releases[place])
            depends = f"{subjects.version}, {conditions(options)}"
            found, samples = search(subjects, journal, depends, line, named, options.runs)
    except KeyboardInterrupt:
        # Outside of the search.
        return _interrupted(options)
    text = findings.report(found, samples, [*line], options.good or "", partial(_next_steps, options, samples))
    print(text)
    (options.results / FINDINGS).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    code = findings.exit_code([*found.values()])
    return _interrupted(options) if code == INTERRUPTED else code


def _next_steps(options: argparse.Namespace, samples: Samples, subject: str, before: str, after: str) -> list[str]:
    """What to do with a finding: each line can be pasted after its colon."""
    if options.repo:
        return [f"what changed: git -C {shlex.quote(str(options.repo))} log -p --first-parent {before}..{after}"]
    what = f"--script {shlex.quote(subject)}" if options.script else subject
    commits = f"{COMMAND} bisect {what} --repo CLONE --python ENV --good jax-v{before} --bad jax-v{after}"
    steps = [
        f"what changed in JAX: https://github.com/jax-ml/jax/compare/jax-v{before}...jax-v{after}",
        f"to find the commit of JAX, if its Python code changed the outcome (docs/bisection.md): {commits}",
    ]
    if not options.script:
        from ..engine.preparation import known_failures_of

        known = load_expectations(known_failures_of(options.platform))
        failures = {sample.words for ran in samples[subject].values() for sample in ran if not sample.passed}
        met = (known.explaining(subject, jax, words) for jax in (before, after) for words in failures)
        steps += next((entry.report for entry in met if entry), [])
        # A case has no program without the suite.
        alone = "" if "/case." in subject else " --standalone"
        where = f"to be run with JAX {before} and with {after}"
        steps.append(f"to make a program of the cell, {where}: {COMMAND} repro {subject}{alone}")
    return steps


def _interrupted(options: argparse.Namespace) -> int:
    tell(f"interrupted: {options.results} has the finished runs, and the same command with --resume goes on with them")
    return INTERRUPTED


def _subjects(options: argparse.Namespace) -> Subjects:
    if bool(options.script) == bool(options.cells or options.patterns):
        raise ConflictingOptionsError("give what to bisect: either cells, by CELL or -k EXPR, or --script FILE")
    if options.script:
        if not options.script.is_file():
            raise ConflictingOptionsError(f"there is no script {options.script}")
        return Script(options.script, options.deadline)
    if pattern := next((word for word in options.cells if word[0] != "@" and ("*" in word or "/" not in word)), None):
        raise ConflictingOptionsError(f"{pattern!r} is no cell id: `{COMMAND} bisect -k {shlex.quote(pattern)}`")
    return Cells(tuple(cells_of(options, options.cells)), options.deadline, options.results / "workers.log")


def _releases(options: argparse.Namespace, installer: Installer) -> list[Release]:
    ends = sorted(filter(None, (options.good, options.bad)), key=lambda end: Release.parse(end).order)
    first, last = ends if len(ends) == 2 else ("", "".join(ends))
    # An end that is not given is the last there is.
    if len(ends) == 1 and version_key(last) < version_key(next(installer.published())):
        first, last = last, ""
    return between(installer, first, last)
