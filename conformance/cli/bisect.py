"""The command `bisect`: the first release, or the first commit, in which a cell or a script behaves differently."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bisecting import commit_search, findings
from ..bisecting.bisection import Answer, between, whole
from ..bisecting.commit_search import Trial, judge, search_commits
from ..bisecting.commits import Repository
from ..bisecting.evidence import CONFIDENCE, MOST_RUNS, Evidence, Rule, rule_of
from ..bisecting.findings import Place
from ..bisecting.probing import Journaled, ReleaseProber, tell
from ..bisecting.searching import Samples, answers
from ..bisecting.subjects import Cells, Script, Subjects
from ..engine.interrupts import terminated_like_interrupted
from ..engine.options import ConflictingOptionsError, positive
from ..planning.cells import parse_cell
from ..planning.keywords import any_of
from ..releases.installing import Installer, link_packages
from ..releases.journal import RunJournal
from ..releases.release import OLDEST, Release, ReleaseError
from ..spec.errors import CommandError, words_of
from ..spec.package import PACKAGE
from ..spec.versions import version_key
from .helping import add_command, add_patterns
from .release_options import add_installing, cells_of, installer_of, releases_between

INTERRUPTED = 130

DESCRIPTION = """\
Find the first release of JAX, or with --repo the first commit, with another outcome: the verdict of a cell, its stage
and its kind of anomaly, or the exit code and the output of a script. Without ends, the whole range is searched from
both sides."""

MORE = """\
Of several cells, the first of 0, 3, 2, 1 that one of them has.
A script ends with 125 to say that this release cannot be tested.
With --step the codes are for `git bisect run`: 0 good, 1 bad, 125 cannot be tested, 128 the search ends."""


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
            findings.FOUND: "found: a release, a commit, or a range that holds it if what lies in it cannot be tested",
            findings.SAME: "the ends do not differ, and no difference was seen between them",
            findings.UNUSABLE: "bad input, no index, an end that cannot be tested, or only one release that can",
            findings.CANNOT_TELL: "cannot tell: chance may explain what was seen",
            INTERRUPTED: "interrupted; --resume goes on",
        },
        MORE,
    )
    add = parser.add_argument
    add("cells", nargs="*", metavar="CELL", help="ids of cells")
    add_patterns(add)
    add("--script", type=Path, metavar="FILE", help="a Python program; its exit code and its output are the outcome")
    add("--good", metavar="END", help="a release like 0.6.2, or with --repo a revision")
    add("--bad", metavar="END", help="another one")
    add("--repo", type=Path, metavar="DIR", help="search the commits of this repository of hostcb or of JAX")
    add("--step", action="store_true", help="judge the checkout in the current folder, for `git bisect run`")
    add("--runs", type=positive(int), metavar="N", help="run so often in each release, and compare rates")
    add(
        "--confidence",
        type=_probability,
        metavar="P",
        help=f"run as often as this confidence needs, like {CONFIDENCE}; at most --runs, by default {MOST_RUNS}",
    )
    add(
        "--compare",
        choices=("all", "verdict"),
        default="all",
        help="'verdict' ignores the stage and the kind of anomaly of a cell, and the output of a script",
    )
    add("--results", type=Path, default=Path("results/bisect"), metavar="DIR", help="where finished runs are kept")
    add_installing(parser)


def main(options: argparse.Namespace) -> int:
    if options.step:
        return _step(options)
    _check(options)
    with terminated_like_interrupted():
        try:
            return _in_commits(options) if options.repo else _in_releases(options)
        except KeyboardInterrupt:
            tell(f"interrupted: {options.results} has the finished runs, and --resume goes on with them")
            return INTERRUPTED


def _check(options: argparse.Namespace) -> None:
    if options.script and (options.cells or options.patterns):
        raise ConflictingOptionsError("--script and cells exclude each other")
    if not (options.script or options.cells or options.patterns):
        raise ConflictingOptionsError("there is nothing to bisect: give a CELL, -k EXPR or --script FILE")
    if options.script and not options.script.is_file():
        raise ConflictingOptionsError(f"there is no script {options.script}")
    if options.repo and not (options.good and options.bad):
        raise ConflictingOptionsError("--repo needs both ends: --good REV and --bad REV")
    if not options.repo and options.good and options.good == options.bad:
        raise ReleaseError(f"--good and --bad are both {options.good}: two releases are needed")
    # Errors that need no answer of the package index come first.
    any_of(options.patterns)
    for cell in options.cells:
        parse_cell(cell, any_release=True)


def _subjects(options: argparse.Namespace, newest: str) -> Subjects:
    verdict_alone = options.compare == "verdict"
    if options.script:
        return Script(options.script, options.deadline, verdict_alone)
    cells = cells_of(options, options.cells, None, newest)
    return Cells(tuple(cells), options.deadline, options.results / "workers.log", verdict_alone)


def _conditions(options: argparse.Namespace, subjects: Subjects) -> str:
    return f"{subjects.conditions}, Python {options.python}{', stress' * options.stress}"


def _journal(options: argparse.Namespace) -> contextlib.closing[RunJournal]:
    return contextlib.closing(RunJournal(options.results / "probes.jsonl", options.resume))


# Releases -------------------------------------------------------------------------------------------


def _in_releases(options: argparse.Namespace) -> int:
    with installer_of(options, options.results) as installer:
        releases = _line(options, installer)
        places = [Place(release.jax, release.label) for release in releases]
        subjects = _subjects(options, newest=releases[-1].jax)
        ends = [version for version in (options.good, options.bad) if version]
        named = [index for index, release in enumerate(releases) if release.jax in ends]
        search = between(0, len(releases) - 1) if len(ends) == 2 else whole(len(releases), named)
        rule = rule_of(options.runs, options.confidence)
        with _journal(options) as journal:
            prober = ReleaseProber(releases, installer, subjects)
            probe = Journaled(prober, journal, places, _conditions(options, subjects), options.stress)
            samples = probe.known(subjects.names)
            found = answers(subjects.names, search, Evidence({}, rule), probe, samples)
        return _concluded(options, [(found, samples, places)], rule)


def _line(options: argparse.Namespace, installer: Installer) -> list[Release]:
    """The releases from one end to the other; an end that is not given is the last there is."""
    ends = sorted(filter(None, (options.good, options.bad)), key=version_key)
    if len(ends) == 2:
        return releases_between(ends[0], ends[1], installer)
    newest = next(installer.published())
    first, last = OLDEST, newest
    if ends:
        first, last = (ends[0], newest) if version_key(ends[0]) < version_key(newest) else (OLDEST, ends[0])
    return releases_between(first, last, installer)


# Commits --------------------------------------------------------------------------------------------


def _in_commits(options: argparse.Namespace) -> int:
    # Steps have another current folder. The interpreter of a virtual environment is a link that must stay one.
    options.python = str(Path(options.python).absolute())
    options.script = options.script and options.script.resolve()
    repository = Repository(options.repo)
    old, new = repository.commit(options.good), repository.commit(options.bad)
    if old == new:
        raise ReleaseError(f"--good and --bad are the same commit, {old[:10]}: two are needed")
    if repository.is_ancestor(new, old):
        # The search is for the commit that mended it.
        old, new = new, old
    elif not repository.is_ancestor(old, new):
        raise ReleaseError(f"{options.good} is no ancestor of {options.bad}: give two ends of one history")
    with (
        repository.worktree() as tree,
        tempfile.TemporaryDirectory() as packages,
        _journal(options) as journal,
    ):
        trial = _trial(options, journal)
        # The worktree, in which a step runs, may have a suite of its own.
        link_packages(Path(packages))
        path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        step = [*_step_command(options, old, new), *(["--script"] if options.script else [])]
        found = [*search_commits(trial, tree, old, new, step, environment)]
    return _concluded(options, found, trial.rule)


def _step_command(options: argparse.Namespace, old: str, new: str) -> list[str]:
    """The command that judges one checkout by the runs of both ends, without its subject."""
    command = [sys.executable, "-m", PACKAGE, "bisect", "--step", "--results", str(options.results.resolve())]
    command += ["--python", options.python, "--deadline", f"{options.deadline:g}", "--compare", options.compare]
    command += ["--runs", str(options.runs)] if options.runs else []
    command += ["--confidence", str(options.confidence)] if options.confidence else []
    return [*command, *(["--stress"] if options.stress else []), "--good", old, "--bad", new]


def _step(options: argparse.Namespace) -> int:
    """Judge the checkout in the current folder, by what the ends of the search did or by whether it passes."""
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(terminated_like_interrupted())
            if not options.good:
                # The current folder is a checkout of the user's.
                options.results = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options.resume = True
            _check(options)
            journal = stack.enter_context(_journal(options))
            ends = [options.good, options.bad] if options.good else []
            return judge(_trial(options, journal), Repository(Path.cwd()), ends)
    except KeyboardInterrupt:
        tell("interrupted: nothing is known of this commit")
    except Exception as error:
        # Python's own exit code for this is that of a bad commit.
        if not isinstance(error, CommandError | OSError):
            traceback.print_exc()
        tell(f"ERROR: nothing is known of this commit: {words_of(error)}")
    return commit_search.STOP


def _trial(options: argparse.Namespace, journal: RunJournal) -> Trial:
    subjects = _subjects(options, newest=importlib.metadata.version("jax"))
    rule = rule_of(options.runs, options.confidence)
    return Trial(Path(options.python), subjects, journal, _conditions(options, subjects), rule, options.stress)


# What was found -------------------------------------------------------------------------------------


def _concluded(
    options: argparse.Namespace,
    found: Sequence[tuple[Mapping[str, Answer], Samples, Sequence[Place]]],
    rule: Rule,
) -> int:
    """Print and keep what was found, and return the exit code."""
    text = "\n\n".join(findings.report(answers, samples, places, rule) for answers, samples, places in found)
    print(text)
    (options.results / "findings.txt").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    code = findings.exit_code([answer for answers, _, _ in found for answer in answers.values()])
    if code == findings.UNUSABLE:
        tell("ERROR: nothing can be found: what could not be tested is named above")
    return code


def _probability(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.5 <= (number := float(text)) < 1:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no confidence like 0.99: it is from 0.5 to below 1")
