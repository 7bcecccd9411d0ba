"""The search among commits: `git bisect`, in a worktree of its own.

Nothing here touches the working tree of a user, or the index, branches and hooks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..releases.environments import Environment, ReleaseError
from .line import Line, LineOf
from .search import Answer, Evidence, Kind, Samples, change_in

Findings: TypeAlias = list[tuple[dict[str, Answer], Samples, Sequence[str]]]
"""Answers by subject, the samples that show them, and the labels of the places."""


def search_commits(
    new_line: LineOf, subjects: Sequence[str], repository: Repository, ends: tuple[str, str], python: Path
) -> Findings:
    """Run both ends; for each subject of which they differ, git then chooses the commits."""
    old, new = ends
    found: Findings = []
    with repository.worktree() as tree:

        def line_of(*commits: str) -> Line:
            labels = [tree.label(commit) for commit in commits]
            return new_line(labels, lambda index: tree.environment(commits[index], python))

        line = line_of(old, new)
        answers, samples = line.search(change_in(2, named=(0, 1)), subjects)
        if others := {subject: answer for subject, answer in answers.items() if answer.kind is not Kind.FOUND}:
            found.append((others, samples, line.labels))
        for subject in (subject for subject in answers if subject not in others):

            def mark(commit: str, subject: str = subject) -> str:
                return line_of(old, commit, new).search(_mark, [subject])[0][subject]

            line = line_of(*dict.fromkeys((old, *tree.bisect(old, new, mark), new)))
            last = len(line.labels) - 1
            found.append((*line.search(change_in(last + 1, named=(0, last)), [subject]), line.labels))
    return found


def _mark(evidence: Evidence) -> str:
    """What git is given for the commit between two ends."""
    if not evidence.testable(1):
        return "skip"
    return {"as old": "old", "unclear": "skip"}.get(evidence.relation(1, 0, 2), "new")


@dataclass(frozen=True)
class Repository:
    path: Path

    def ends(self, one: str, other: str) -> tuple[str, str]:
        """Two commits, the older one first."""
        old, new = self._commit(one), self._commit(other)
        base = self._git("merge-base", old, new, codes=(0, 1)).strip()
        if old == new or base not in (old, new):
            raise ReleaseError(f"--good {one} and --bad {other}: give two commits of which one comes before the other")
        return (old, new) if base == old else (new, old)

    def _commit(self, revision: str) -> str:
        self._git("rev-parse", "--git-dir")
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if not (found := self._git(*asked, codes=range(256)).strip()):
            raise ReleaseError(f"{self.path} has no commit {revision!r}")
        return found

    def label(self, commit: str) -> str:
        """A short name and the first line of the message."""
        return f"{commit[:10]} {self._git('log', '-1', '--no-show-signature', '--format=%s', commit).strip()}"

    @contextlib.contextmanager
    def worktree(self) -> Iterator[Repository]:
        """A worktree without a branch, which is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="conformance-bisect-", ignore_cleanup_errors=True) as folder:
            tree = Path(folder).resolve() / "tree"
            try:
                # Of a search that was killed, git still knows the worktree.
                self._git("worktree", "prune")
                self._git("worktree", "add", "--detach", str(tree), "HEAD")
                yield Repository(tree)
            finally:
                self._git("worktree", "remove", "--force", str(tree), codes=range(256))

    def environment(self, commit: str, python: Path) -> Environment:
        """The environment of an interpreter, with the packages of a commit, which is checked out."""
        self._git("checkout", "--quiet", "--force", "--detach", commit)
        return Environment.of(python, self.path.parent / commit, self.path)

    def bisect(self, old: str, new: str, mark: Callable[[str], str]) -> list[str]:
        """The newest commit that is as the older end, and those of which one is the first that is not.

        The last of these is known to differ. `mark` says of a commit that is checked out: old, new or skip.
        """
        self._git("bisect", "start")
        self._git("bisect", "new", new)
        self._git("bisect", "old", old)
        while True:
            first, known, skipped = (self._marked(kind) for kind in ("new", "old-*", "skip-*"))
            suspects = self._history(*first, "--not", *known)
            if {*suspects[:-1]} <= {*skipped}:
                break
            # Git says 2 if only skipped commits are left.
            self._git("bisect", mark(self._commit("HEAD")), codes=(0, 2))
        before = [commit for commit in (old, *self._history(*first, "--not", old)) if commit in known][-1]
        self._git("bisect", "reset")
        return [before, *suspects]

    def _history(self, *commits: str) -> list[str]:
        return self._git("rev-list", "--topo-order", "--reverse", *commits).split()

    def _marked(self, kind: str) -> list[str]:
        return self._git("for-each-ref", "--format=%(objectname)", f"refs/bisect/{kind}").split()

    def _git(self, *arguments: str, codes: Container[int] = (0,)) -> str:
        ended = subprocess.run(
            # Hooks are for the user's own work.
            ["git", "-C", str(self.path), "-c", "core.hooksPath=/dev/null", *arguments],
            # Without what would lead git to another repository, for example in a hook of one.
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            # In a session of its own, Ctrl-C does not stop git in the middle of cleaning up.
            start_new_session=True,
        )
        if ended.returncode not in codes:
            raise ReleaseError(f"`git {' '.join(arguments)}` failed in {self.path}: {ended.stderr.strip()}")
        return ended.stdout
