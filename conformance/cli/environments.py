"""The command `environments`."""

from __future__ import annotations

import argparse
from typing import Any

from ..engine.preparation import ConflictingOptionsError
from ..releases.environments import Entry, Environments
from ..releases.release import Release, ReleaseError
from ..spec.package import COMMAND
from .helping import add_command
from .release_options import add_environments


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "environments",
        "List the cached environments of releases of JAX, or remove them.",
        ["", "--prune --keep 0.6.2 0.8.3"],
        {0: "done", 2: "bad input: nothing was removed"},
    )
    add_environments(parser)
    parser.add_argument("--prune", action="store_true", help="remove all that no process uses")
    parser.add_argument(
        "--keep", nargs="+", default=[], metavar="VERSION", help="with --prune: but not those of these releases"
    )


def main(options: argparse.Namespace) -> int:
    cache = Environments(options.environments)
    entries = cache.entries()
    if options.keep and not options.prune:
        raise ConflictingOptionsError("--keep is for --prune")
    for version in options.keep:
        # A mistyped version would remove what it was to keep.
        if not any(entry.release and _named(entry.release, [version]) for entry in entries):
            raise ReleaseError(f"--keep {version}: there is no environment of that release, and nothing was removed")
    if options.prune:
        kept = [entry.release for entry in entries if entry.release and _named(entry.release, options.keep)]
        freed = cache.prune(kept)
        left = len(cache.entries())
        print(f"freed {_size(freed)}; {left} environments are left in {cache.folder}")
        return 0
    for entry in entries:
        print(_line(entry))
    total = _size(sum(entry.size for entry in entries))
    print(f"{len(entries)} environments in {cache.folder}, {total}; `{COMMAND} environments --prune` removes them")
    return 0


def _named(release: Release, versions: list[str]) -> bool:
    return release.jax in versions or f"{release.jax}:{release.jaxlib}" in versions


def _line(entry: Entry) -> str:
    if entry.release is None:
        return f"{_size(entry.size):>9}  unfinished: a process ended while it made this"
    return "{:>9}  JAX {}, Python {}.{}".format(_size(entry.size), entry.release.label, *entry.python)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
