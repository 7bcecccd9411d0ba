"""The command `bisect`: the first release, or the first commit, in which a cell or a script behaves differently."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bisecting import apart, findings
from ..bisecting.bisection import Answer, between, every, whole
from ..bisecting.candidates import Candidate, line_of, marked
from ..bisecting.probing import ReleaseProber
from ..bisecting.searching import Prober, Samples
from ..bisecting.spreading import ClusterProber
from ..bisecting.subjects import Cells
from ..engine.options import add_scheduler, add_selection
from ..engine.preparation import SUPPORTED, ConflictingOptionsError
from ..planning.cells import parse_cell
from ..planning.keywords import any_of
from ..releases.environments import Environments
from ..releases.index import index
from ..releases.wheels import WheelEnvironments, Wheels
from ..spec.versions import version_matches
from . import bisect_commits
from .helping import add_command
from .hunting import Hunt, add_running, conclude, ending_orderly, hunting, question_of, tell
from .release_options import add_environments
from .scheduling import check_scheduler, cluster_for, implementations_of, place_on_workers

INTERRUPTED = 130

DESCRIPTION = """\
Find the first release of JAX, or with --repo the first commit, with another outcome: the verdict of a cell, its stage
and its kind of anomaly, or the exit code and the output of a script. Without ends, the whole range is searched from
both sides."""

MORE = """\
Of several cells, the first of 0, 3, 2, 1 that one of them has.
A script ends with 125 to say that this release cannot be tested."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "bisect",
        DESCRIPTION,
        [
            "jax/io_callback_ordered/scan/cpu-1dev --good 0.6.2 --bad 0.8.3",
            "-k 'jax and debug_callback and vmap' --all",
            "--script bug.py",
            "-k 'jax and io_callback' --all --scheduler tcp://HOST:8786",
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
    add("-k", dest="patterns", action="append", default=[], metavar="EXPR", help="cells whose id answers to this")
    add("--script", type=Path, metavar="FILE", help="a Python program; its exit code and its output are the outcome")
    add("--good", metavar="END", help="a release like 0.6.2, or with --repo a revision")
    add("--bad", metavar="END", help="another one")
    add("--all", dest="every", action="store_true", help="run every release, and find every change")
    add("--jaxlib", metavar="VERSION", help="this jaxlib with every jax; with --repo, the release to try commits with")
    add("--apart", action="store_true", help="say which of jax and jaxlib brought a change, where they can be mixed")
    add("--wheels", type=Path, metavar="DIR", help="a folder with more wheels of jax and jaxlib, such as nightly ones")
    add("--repo", type=Path, metavar="PATH", help="search the commits of this repository of hostcb or of JAX")
    add_running(add)
    add_scheduler(add, "try the releases")
    add_environments(parser)
    add("--results", type=Path, default=Path("results/bisect"), metavar="DIR", help="where finished probes are kept")
    add("--resume", action="store_true", help="go on with the finished probes in the folder of results")
    add_selection(add)


def main(options: argparse.Namespace) -> int:
    _check(options)
    with ending_orderly():
        try:
            return bisect_commits.main(options) if options.repo else _main(options)
        except KeyboardInterrupt:
            tell(f"interrupted: {options.results} has the finished probes, and --resume goes on with them")
            return INTERRUPTED


def _check(options: argparse.Namespace) -> None:
    if options.script and (options.cells or options.patterns):
        raise ConflictingOptionsError("--script and cells exclude each other")
    if not (options.script or options.cells or options.patterns):
        raise ConflictingOptionsError("there is nothing to bisect: give a CELL, -k EXPR or --script FILE")
    if options.script and not options.script.is_file():
        raise ConflictingOptionsError(f"there is no script {options.script}")
    if options.repo and (options.every or options.wheels or options.apart):
        raise ConflictingOptionsError("--all, --wheels and --apart are for releases, and --repo is for commits")
    if options.repo and not (options.good and options.bad):
        raise ConflictingOptionsError("--repo needs both ends: --good REV and --bad REV")
    if options.scheduler and (options.repo or options.wheels):
        where = "--repo" if options.repo else "--wheels"
        raise ConflictingOptionsError(
            f"{where} is a folder of this machine: --scheduler tries releases of the index alone"
        )
    check_scheduler(options.scheduler)
    if options.jaxlib and options.apart:
        raise ConflictingOptionsError("--jaxlib leaves no other jaxlib for --apart to try")
    # Errors that need no answer of the package index come first.
    any_of(options.patterns)
    for cell in options.cells:
        parse_cell(cell, any_release=True)


def _main(options: argparse.Namespace) -> int:
    # What needs no index is checked first.
    wheels = Wheels.within(options.wheels) if options.wheels else None
    environments = WheelEnvironments(wheels, options.environments) if wheels else Environments(options.environments)
    known = index()
    releases, skipped = known.released()
    if wheels:
        releases = wheels.beside(releases)
    line = line_of(releases, skipped, options.good, options.bad, options.jaxlib, known.unreachable)
    if wheels:
        line = replace(line, candidates=marked(line.candidates, wheels.mark))
    for note in line.notes:
        tell(f"NOTE: {note}")
    newest = [candidate.release.jax for candidate in line.candidates if candidate.release][-1]
    question = question_of(options, without_hostcb=not version_matches(newest, SUPPORTED))
    count, named = len(line.candidates), line.named
    both_ends = options.good and options.bad
    search = every(count, named) if options.every else between(0, count - 1) if both_ends else whole(count, named)
    good = None if not both_ends else count - 1 if line.swapped else 0
    implementations = implementations_of(question.subjects) if isinstance(question, Cells) else []
    cluster = cluster_for(options.scheduler, implementations) if options.scheduler else contextlib.nullcontext()
    # A cluster that is not there leaves the journal alone.
    with cluster as work, hunting(options, question) as hunt:

        def prober(candidates: Sequence[Candidate]) -> Prober:
            if not work:
                return ReleaseProber(candidates, environments, question)
            return ClusterProber(work, candidates, place_on_workers(options.environments), question, options.stress)

        found, samples = hunt.search(search, prober(line.candidates), line.places, question.subjects, {})
        code = conclude(hunt, found, samples, line.places, options.results, good)
        if options.apart:
            for text in _apart(hunt, prober, wheels, line.candidates, found, samples):
                print(text)
    return code


def _apart(
    hunt: Hunt,
    prober: Callable[[Sequence[Candidate]], Prober],
    wheels: Wheels | None,
    candidates: tuple[Candidate, ...],
    found: Mapping[str, Answer],
    samples: Samples,
) -> Iterator[str]:
    """For each change between two neighbours, which of jax and jaxlib brought it."""
    changed: dict[tuple[int, int], list[str]] = {}
    for subject, answer in found.items():
        for change in answer.changes:
            if not (change.skipped or change.varying):
                changed.setdefault((change.before, change.after), []).append(subject)
    for (before, after), subjects in changed.items():
        old, new = candidates[before].release, candidates[after].release
        assert old is not None
        assert new is not None
        if old.jaxlib == new.jaxlib:
            yield f"\nAPART: jax brought the change: {old.jax} and {new.jax} have the same jaxlib, {old.jaxlib}."
            continue
        mixtures = apart.mixtures(old, new)
        if wheels:
            mixtures = marked(mixtures, wheels.mark)
        known = {subject: {0: samples[subject][before], 1: samples[subject][after]} for subject in subjects}
        places = [mixture.place for mixture in mixtures]
        mixed, _ = hunt.search(apart.compared, prober(mixtures), places, subjects, known)
        for subject, pair in mixed.items():
            yield "\n".join(("", subject, *(f"  {line}" for line in apart.verdict(old, new, *pair))))
