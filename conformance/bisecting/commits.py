"""The commits between two of a repository, and the search among them, which is no line but may have merges."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..releases.release import ReleaseError
from ..releases.running import alive
from .bisection import Answer, Change, Kind, Search, confirmed, no_difference
from .evidence import Evidence, Relation

PREFIX = "conformance-bisect-"
FORKED_BEFORE = "its branch forked before the older end"


@dataclass(frozen=True)
class History:
    """The commits that the newer end has and the older one has not, after the older end; parents come first."""

    commits: tuple[str, ...]
    subjects: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]
    """The places of a commit's parents, as far as they are in this history."""


class Repository:
    """A repository of a user. Nothing here touches its working tree, its index or its branches."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise ReleaseError(f"there is no folder {path}")
        self.path = path
        asked = self._try("rev-parse", "--git-dir")
        if asked.returncode:
            # Git refuses also one of another owner.
            words = next((line.removeprefix("fatal: ") for line in asked.stderr.splitlines() if line), "")
            raise ReleaseError(f"{path} is no git repository that git reads: {words or 'it wrote nothing'}")

    def commit(self, revision: str) -> str:
        found = self._try("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if found.returncode:
            raise ReleaseError(f"{self.path} has no commit {revision!r}")
        return found.stdout.strip()

    def is_ancestor(self, older: str, newer: str) -> bool:
        return self._try("merge-base", "--is-ancestor", older, newer).returncode == 0

    def history(self, old: str, new: str) -> History:
        # With log.showSignature, git writes what it thinks of a signature among the fields.
        log = ("log", "--no-show-signature")
        listed = self._run(*log, "-z", "--topo-order", "--reverse", "--format=%H %P%x00%s", new, "--not", old)
        subject = self._run(*log, "-1", "--format=%s", old)
        # Not by lines: git ends them at a line feed alone, and a subject may have what Python takes for an end, too.
        fields = listed.split("\0")[:-1]
        names = [words.split() for words in fields[::2]]
        places = {old: 0} | {name[0]: place for place, name in enumerate(names, 1)}
        parents = tuple(tuple(places[parent] for parent in name[1:] if parent in places) for name in names)
        subjects = tuple(" ".join(words.split()) for words in (subject, *fields[1::2]))
        return History(tuple(places), subjects, ((), *parents))

    @contextlib.contextmanager
    def worktree(self) -> Iterator[Path]:
        """A working tree of its own, which is gone afterwards. It is for one process, and has no branch."""
        self._sweep()
        with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
            tree = Path(folder).resolve() / "tree"
            try:
                self._run("worktree", "add", "--detach", "--no-checkout", str(tree), "HEAD")
                yield tree
            finally:
                self._try("worktree", "remove", "--force", str(tree))
                shutil.rmtree(tree, ignore_errors=True)
                self._try("worktree", "prune")

    def _sweep(self) -> None:
        """Remove the worktrees of searches that were killed."""
        for line in self._run("worktree", "list", "--porcelain").splitlines():
            tree = Path(line.removeprefix("worktree "))
            owner = re.fullmatch(rf"{PREFIX}(\d+)-.*", tree.parent.name)
            if owner and not alive(int(owner[1])):
                self._try("worktree", "remove", "--force", str(tree))
                shutil.rmtree(tree.parent, ignore_errors=True)

    def check_out(self, commit: str, tree: Path) -> None:
        # No hooks: they are for the user's own work.
        self._run(
            "-C", str(tree), "-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "--force", "--detach", commit
        )
        # What earlier commits have written must not be there: Python imports a folder that holds only __pycache__.
        self._run("-C", str(tree), "clean", "-ffdxq")

    def _run(self, *arguments: str) -> str:
        ended = self._try(*arguments)
        if ended.returncode:
            words = ended.stderr.strip().splitlines() or ["it wrote nothing"]
            raise ReleaseError(f"git {' '.join(arguments[:3])} failed in {self.path}: {words[-1]}")
        return ended.stdout

    def _try(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", "-C", str(self.path), *arguments]
        try:
            # In a session of its own, Ctrl-C does not stop git in the middle of cleaning up.
            return subprocess.run(
                command,
                env={**environment, "LC_ALL": "C"},
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ReleaseError("there is no git here, with which to walk through commits") from error


def among(parents: Sequence[Sequence[int]]) -> Search[Answer]:
    """Find the first commit with another outcome than the first of these, as `git bisect` does.

    Only descendants of the first run. A branch that forked before it may lack what the first has, so its outcomes say
    nothing: it is one step with its merge.
    """
    old, new = 0, len(parents) - 1
    ancestors = _ancestors(parents)

    def search(evidence: Evidence) -> Answer:
        ends = [(end, why) for end in (old, new) if (why := evidence.why_untestable(end)) is not None]
        if ends:
            return Answer(Kind.UNTESTABLE, old, new, untestable=tuple(ends))
        if not evidence.differ(old, new):
            return no_difference(evidence, old, new)
        return confirmed(evidence, old, new, [_change(evidence, ancestors, old, new)])

    return search


def _change(evidence: Evidence, ancestors: Sequence[int], old: int, new: int) -> Change:
    like_old, after = {old}, new
    descendants = sum(1 << index for index, its_ancestors in enumerate(ancestors) if its_ancestors >> old & 1)
    skipped = dict.fromkeys(_members(ancestors[new] & ~descendants), FORKED_BEFORE)
    unclear: list[int] = []
    while True:
        known = 0
        for index in like_old:
            known |= ancestors[index]
        suspected = ancestors[after] & ~known
        suspects = _members(suspected)
        left = [index for index in suspects if index != after and index not in skipped]
        if not left:
            break
        middle = max(left, key=lambda index: _halves(ancestors[index], suspected & descendants, index))
        if reason := evidence.why_untestable(middle):
            skipped[middle] = reason
            continue
        relation = evidence.relation(middle, old, new)
        if relation is Relation.UNCLEAR:
            skipped[middle] = f"cannot tell, {evidence.rate(middle)}"
            unclear.append(middle)
        elif relation is Relation.OLD:
            like_old.add(middle)
        else:
            after = middle
    inside = tuple((index, skipped[index]) for index in suspects if index != after)
    # The newest commit before the suspects that ran: mostly a parent of the answer.
    before = max(index for index in like_old if ancestors[after] >> index & 1)
    return Change(before, after, inside, tuple(index for index in unclear if index in suspects))


def _ancestors(parents: Sequence[Sequence[int]]) -> list[int]:
    """For each commit the set of its ancestors and itself, as the bits of a number."""
    found: list[int] = []
    for index, its_parents in enumerate(parents):
        bits = 1 << index
        for parent in its_parents:
            bits |= found[parent]
        found.append(bits)
    return found


def _members(bits: int) -> list[int]:
    return [index for index in range(bits.bit_length()) if bits >> index & 1]


def _halves(its_ancestors: int, suspected: int, index: int) -> tuple[int, int]:
    """How many suspects a commit rules out at least, whatever its outcome is; of equals, the newest."""
    inside = (its_ancestors & suspected).bit_count()
    return min(inside, suspected.bit_count() - inside), index


def packages_in(tree: Path, names: Sequence[str] = ("hostcb", "jax")) -> Mapping[str, Path]:
    """The packages of a checkout that may be tried: `jaxlib`, which lies beside `jax`, is source that is not built."""
    return {name: tree / name for name in names if (tree / name / "__init__.py").exists()}


def link_packages(tree: Path, folder: Path) -> None:
    """Make a folder for PYTHONPATH that holds these packages of a checkout and nothing else of it."""
    packages = packages_in(tree)
    if not packages:
        raise ReleaseError("this commit has no package hostcb and no package jax at its top")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, place in packages.items():
        (folder / name).symlink_to(place, target_is_directory=True)
