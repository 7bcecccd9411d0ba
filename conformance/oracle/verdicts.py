"""The verdict on a cell, the stage of a failure, and its witness."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Verdict(Enum):
    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    UNSUPPORTED = "unsupported"
    """The platform itself reports that it does not support the program."""
    FLAKE = "flake"
    """Failed in a process with other cells, and passed alone."""
    MISSING = "missing"
    """Planned and never run."""
    HARNESS_ERROR = "harness_error"
    """The suite itself failed; this shows nothing about the implementation."""


class ExpectationStatus(Enum):
    """The verdict compared with the expected one."""

    AS_EXPECTED = "as_expected"
    KNOWN_FAILURE = "known_failure"
    UNEXPECTED = "unexpected"
    UNEXPECTED_PASS = "unexpected_pass"
    CHANGED_FAILURE = "changed_failure"

    @property
    def acceptable(self) -> bool:
        return self in (ExpectationStatus.AS_EXPECTED, ExpectationStatus.KNOWN_FAILURE)


class Stage(Enum):
    TRACE = "trace"
    LOWER = "lower"
    COMPILE = "compile"
    DISPATCH = "dispatch"
    CALLBACK = "callback"
    RESULT = "result"
    BARRIER = "barrier"
    EXIT = "exit"


def in_words(label: str, stage: str | None, anomaly: str) -> str:
    """A verdict with its details: `fail at callback (lost)`."""
    return label + (f" at {stage}" if stage else "") + (f" ({anomaly})" if anomaly else "")


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    stage: Stage | None = None
    reason: str = ""
    """The witness of a failure: the smallest evidence, as text."""
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    signal: str | None = None
    """The end of a crashed cell's process: a signal's name, or an exit code."""
    anomaly: str = ""
    """The kind of the first anomaly, for example `lost`: comparisons of two runs use it, and not the witness."""

    evidence: tuple[tuple[int, int], ...] = ()
    """The sequence of each event that the witness numbers, and its number in the witness."""

    shown: str = ""
    """What was seen of a good cell that did not run: that its program was `lowered`, `compiled` or `refused`."""
    cause: str = ""
    """For an unsupported program: the platform's words that all cells with the same cause share."""
    refused: bool = False
    """Whether the program had to be refused, and was: then the cell shows nothing of callbacks that run."""

    @property
    def label(self) -> str:
        """The verdict as reports and expectation files write it: `fail`, `crash(SIGABRT)`."""
        return f"{self.verdict.value}({self.signal})" if self.signal else self.verdict.value

    @property
    def words(self) -> str:
        """What happened, without the words that differ from run to run."""
        return in_words(self.label, self.stage.value if self.stage else "", self.anomaly)

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "stage": self.stage.value if self.stage else None,
            "anomaly": self.anomaly,
            "witness": self.reason,
            "seconds": round(self.seconds, 4),
            "signal": self.signal,
            "history": self.history,
            "evidence": [list(pair) for pair in self.evidence],
            **({"cause": self.cause} if self.cause else {}),
            **({"refused": True} if self.refused else {}),
            **({"shown": self.shown} if self.shown else {}),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Outcome:
        return Outcome(
            Verdict(data["verdict"]),
            Stage(data["stage"]) if data["stage"] else None,
            data["witness"],
            data["seconds"],
            data["history"],
            data["signal"],
            data["anomaly"],
            tuple((int(sequence), int(number)) for sequence, number in data.get("evidence", ())),
            data.get("shown", ""),
            data.get("cause", ""),
            data.get("refused", False),
        )
