"""The commits of a repository as a line for the search, each checked out in a worktree of its own.

Nothing here touches the working tree of a user, or the index, branches and hooks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..releases.environments import Environment, ReleaseError


@dataclass(frozen=True)
class Repository:
    path: Path

    def between(self, one: str, other: str) -> dict[str, str]:
        """The commits from one to another, the oldest first, each with a short name and the first line of its message.

        A merge is one commit, as in `git log --first-parent`.
        """
        old, new = self._commit(one), self._commit(other)
        base = self._git("merge-base", old, new, codes=(0, 1)).strip()
        if old == new or base not in (old, new):
            raise ReleaseError(f"--good {one} and --bad {other}: give two commits of which one comes before the other")
        old, new = (old, new) if base == old else (new, old)
        log = ("log", "--no-show-signature", "--format=%H %s")
        lines = self._git(*log, "-1", old) + self._git(*log, "--first-parent", "--reverse", f"{old}..{new}")
        return {line.partition(" ")[0]: f"{line[:10]} {line.partition(' ')[2]}".strip() for line in lines.splitlines()}

    def _commit(self, revision: str) -> str:
        self._git("rev-parse", "--git-dir")
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if not (found := self._git(*asked, codes=range(256)).strip()):
            raise ReleaseError(f"{self.path} has no commit {revision!r}")
        return found

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
