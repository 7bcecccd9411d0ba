"""The search of commits by `bisect --repo`, and `bisect-run`, a single step that `git bisect run` calls."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..bisecting.commits import Repository, among
from ..bisecting.findings import Place
from ..bisecting.probing import Base, CommitProber, site_of
from ..bisecting.samples import UNTESTABLE, Sample
from ..engine.preparation import UNUSABLE_BECAUSE, ConflictingOptionsError
from ..oracle.verdicts import Verdict
from ..releases.environments import Environments
from ..releases.release import Release, ReleaseError
from ..worker.stress import stress
from .helping import add_command
from .hunting import add_running, conclude, ending_orderly, hunting, question_of, tell
from .release_options import add_environments

GOOD, BAD, CANNOT_TEST, STOP = 0, 1, 125, 128
"""What `git bisect run` understands; it skips a commit at 125, and ends at 128."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "bisect-run",
        "Run cells with the packages `hostcb` and `jax` of the current folder before the installed ones.",
        ["hostcb/call/scan/cpu-1dev", "jax/io_callback_ordered/scan/cpu-1dev --jaxlib 0.10.2", "--script bug.py"],
        {
            GOOD: "every run has the good outcome",
            BAD: "a run has another one",
            CANNOT_TEST: "this commit cannot be tested",
            STOP: "bad input, an interruption, or an error of the suite itself: git ends the bisection",
        },
    )
    add = parser.add_argument
    add("cells", nargs="*", metavar="CELL", help="ids of cells")
    add("--script", type=Path, metavar="FILE", help="a Python program in place of cells")
    add(
        "--good-outcome", metavar="WORDS", help="like 'fail at callback (lost)', as `bisect` prints it; by default pass"
    )
    add("--jaxlib", metavar="VERSION", help="try it with this release, and not with the installed one")
    add_running(add, comparing=False)
    add_environments(parser)
    parser.set_defaults(patterns=[])


def main(options: argparse.Namespace) -> int:
    """Search the commits between two revisions."""
    repository = Repository(options.repo)
    old, new = repository.commit(options.good), repository.commit(options.bad)
    swapped = repository.is_ancestor(new, old)
    if old == new:
        raise ReleaseError(f"--good and --bad are the same commit, {old[:10]}: two are needed")
    if swapped:
        old, new = new, old
        tell("NOTE: the good end comes after the bad end: the search is for the commit that mended it")
    elif not repository.is_ancestor(old, new):
        raise ReleaseError(f"{options.good} is no ancestor of {options.bad}: give two ends of one history")
    question = question_of(options)
    base = _base(options.jaxlib, options.environments)
    history = repository.history(old, new)
    places = [
        Place(commit[:10], f"{commit[:10]} {subject}")
        for commit, subject in zip(history.commits, history.subjects, strict=True)
    ]
    where = f"jax {base.jax}, jaxlib {base.jaxlib}"
    with repository.worktree() as tree, hunting(options, question, where) as hunt:
        probe = CommitProber(repository, tree, history, base, question)
        found, samples = hunt.search(among(history.parents), probe, places, question.subjects, {})
        return conclude(hunt, found, samples, places, options.results, len(places) - 1 if swapped else 0)


def run_main(options: argparse.Namespace) -> int:
    """Judge the checkout in the current folder."""
    with ending_orderly():
        try:
            # A machine without a usable temporary folder says nothing of this commit either.
            with tempfile.TemporaryDirectory() as folder:
                options.results = Path(folder)
                return _judged(options)
        except (*UNUSABLE_BECAUSE, ReleaseError) as error:
            print(f"ERROR: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            tell("interrupted: nothing is known of this commit")
        except Exception:
            # Python's own exit code for this is that of a bad commit.
            traceback.print_exc()
            tell("ERROR: the suite itself failed, so nothing is known of this commit")
        return STOP


def _judged(options: argparse.Namespace) -> int:
    if bool(options.cells) == bool(options.script):
        raise ConflictingOptionsError("give either a CELL or --script FILE")
    if options.script and not options.script.is_file():
        raise ConflictingOptionsError(f"there is no script {options.script}")
    good_outcome = options.good_outcome or "pass"
    if options.cells:
        _check_outcome(good_outcome)
    question = question_of(options)
    base = _base(options.jaxlib, options.environments)
    with tempfile.TemporaryDirectory() as scratch, stress() if options.stress else nullcontext():
        try:
            site = site_of(Path.cwd(), base, Path(scratch))
            ran = [*question.ask(site, question.subjects, options.runs or 1)]
        except ReleaseError as error:
            tell(f"cannot be tested: {error}")
            return CANNOT_TEST
    for subject, sample in ran:
        tell(f"{subject}: {sample.words}")
    if any(sample.untestable for _, sample in ran):
        return CANNOT_TEST
    return GOOD if all(_is(sample, good_outcome) for _, sample in ran) else BAD


def _check_outcome(words: str) -> None:
    """No cell would ever be good with a mistyped outcome, and so every commit bad."""
    verdicts = [verdict.value for verdict in Verdict if verdict not in UNTESTABLE]
    # A crash is followed by its signal, and all of them by a stage.
    if re.split(r"[ (]", words)[0] not in verdicts:
        raise ConflictingOptionsError(
            f"--good-outcome {words!r} is no outcome of a cell: expected words that begin with one of"
            f" {', '.join(verdicts)}, like 'fail at callback (lost)' or 'crash(SIGABRT)', as `bisect` prints them"
        )


def _is(sample: Sample, good_outcome: str) -> bool:
    return sample.passed if good_outcome == "pass" else sample.words == good_outcome


def _base(jaxlib: str | None, folder: Path | None) -> Base:
    """The environment that the packages of a checkout are put before: this one, or that of a release."""
    if jaxlib is None:
        return Base(Path(sys.executable), importlib.metadata.version("jax"), importlib.metadata.version("jaxlib"))
    environment = Environments(folder).get(Release(jaxlib, jaxlib))
    return Base(environment.python, jaxlib, jaxlib)
