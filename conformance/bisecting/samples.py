"""What one run of a cell or a script showed, and what makes two runs the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..oracle.verdicts import Outcome, Verdict

OUTPUT = ", prints "
"""In the words of a script it comes between the end and what was printed."""


@dataclass(frozen=True)
class Sample:
    words: str
    """The outcome: two runs with the same words have the same outcome. For an untestable release, the reason."""
    passed: bool = False
    detail: str = ""
    """The witness of a failure, or the output of a script."""
    untestable: bool = False


def untestable(reason: str) -> Sample:
    """A release in which nothing can be found out, with the reason in one line."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return Sample(lines[0] if lines else "no reason was given", untestable=True)


def sample_of(outcome: Outcome, verdict_alone: bool = False) -> Sample:
    """The verdict, the stage and the kind of anomaly; or the verdict alone."""
    if outcome.verdict is Verdict.HARNESS_ERROR:
        # The last line of a traceback is the error.
        return untestable(f"the suite failed: {(outcome.reason.strip().splitlines() or ['?'])[-1]}")
    if outcome.verdict is Verdict.MISSING or (outcome.verdict is Verdict.UNSUPPORTED and outcome.stage is None):
        return untestable(outcome.reason)
    words = outcome.label
    if not verdict_alone:
        words += f" at {outcome.stage.value}" if outcome.stage else ""
        words += f" ({outcome.anomaly})" if outcome.anomaly else ""
    return Sample(words, outcome.verdict is Verdict.PASS, outcome.reason)


def counted(samples: Iterable[Sample]) -> Counter[str]:
    return Counter(sample.words for sample in samples)
