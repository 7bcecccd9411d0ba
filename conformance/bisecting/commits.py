"""The search among commits: `git bisect run`, in a worktree of its own.

Nothing here touches the working tree of a user, or the index, branches and hooks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..releases.release import ReleaseError
from .findings import Place


@dataclass(frozen=True)
class Repository:
    path: Path

    def commit(self, revision: str) -> str:
        self._run("rev-parse", "--git-dir")
        found = self._try("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if found.returncode:
            raise ReleaseError(f"{self.path} has no commit {revision!r}")
        return found.stdout.strip()

    def is_ancestor(self, older: str, newer: str) -> bool:
        return self._try("merge-base", "--is-ancestor", older, newer).returncode == 0

    def place(self, commit: str) -> Place:
        """A commit with the first line of its message."""
        subject = " ".join(self._run("log", "-1", "--no-show-signature", "--format=%s", commit).split())
        return Place(commit[:10], f"{commit[:10]} {subject}")

    def history(self, old: str, new: str) -> list[str]:
        """The older end, and what the newer end has besides; parents come first."""
        return [old, *self._run("rev-list", "--topo-order", "--reverse", new, "--not", old).split()]

    @contextlib.contextmanager
    def worktree(self) -> Iterator[Repository]:
        """A worktree without a branch, which is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="conformance-bisect-", ignore_cleanup_errors=True) as folder:
            tree = Path(folder).resolve() / "tree"
            try:
                # Of a search that was killed, git still knows the worktree.
                self._run("worktree", "prune")
                self._run("worktree", "add", "--detach", str(tree), "HEAD")
                yield Repository(tree)
            finally:
                self._try("worktree", "remove", "--force", str(tree))

    def check_out(self, commit: str) -> None:
        self._run("checkout", "--quiet", "--force", "--detach", commit)

    def bisect(self, old: str, new: str, step: Sequence[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
        """The newest commit that is as the older end, and those of which one is the first that is not.

        The last of these is known to differ. The step is a command as `git bisect run` takes it.
        """
        self._run("bisect", "start")
        self._run("bisect", "new", new)
        self._run("bisect", "old", old)
        process = subprocess.Popen(
            [*self._git, "bisect", "run", *step],
            env=_without_git(environment),
            stdin=subprocess.DEVNULL,
            # Standard output is for findings.
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            # Git ends with an error if commits that were skipped leave several: the refs tell which.
            process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
        first = self.commit("refs/bisect/new")
        known = self._run("for-each-ref", "--format=%(objectname)", "refs/bisect/old-*").split()
        before = [commit for commit in self.history(old, first) if commit in known][-1]
        suspects = self._run("rev-list", "--topo-order", "--reverse", first, "--not", *known).split()
        skipped = self._run("for-each-ref", "--format=%(objectname)", "refs/bisect/skip-*").split()
        if left := [commit for commit in suspects[:-1] if commit not in skipped]:
            raise ReleaseError(f"git bisect ended with exit code {process.returncode} before {len(left)} commits ran")
        self._run("bisect", "reset")
        return before, suspects

    @property
    def _git(self) -> list[str]:
        # Hooks are for the user's own work.
        return ["git", "-C", str(self.path), "-c", "core.hooksPath=/dev/null"]

    def _run(self, *arguments: str) -> str:
        ended = self._try(*arguments)
        if ended.returncode:
            words = ended.stderr.strip().splitlines() or ["it wrote nothing"]
            raise ReleaseError(f"`git {' '.join(arguments)}` failed in {self.path}: {words[-1]}")
        return ended.stdout

    def _try(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # In a session of its own, Ctrl-C does not stop git in the middle of cleaning up.
        return subprocess.run(
            [*self._git, *arguments],
            env=_without_git(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
        )


def _without_git(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what would lead git to another repository, for example in a hook of one."""
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")} | {"LC_ALL": "C"}
