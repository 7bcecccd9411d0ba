"""The exit code of a run, of merged results, and of a bundle whose results are judged again."""

from __future__ import annotations

from collections.abc import Iterable

from ..oracle.verdicts import ExpectationStatus, Verdict
from ..spec.depths import Depth

NOTHING_RAN = 2

AS_EXPECTED_AT = {Depth.RUN: 0, Depth.COMPILE: 3, Depth.LOWER: 4}
"""The exit code of a run that is as expected, and whose depth the machine has chosen."""


def exit_code(cells: Iterable[tuple[str, ExpectationStatus]], *, problem: bool, empty_shard: bool = False) -> int:
    """0 if all cells, each a verdict and its status, are as expected; 1 if not; 2 if none was executed.

    A shard is empty if there are more shards than cells: then nothing had to be executed.
    """
    found = [*cells]
    if not empty_shard and all(verdict == Verdict.MISSING.value for verdict, _ in found):
        return NOTHING_RAN
    return int(problem or not all(status.acceptable for _, status in found))
