"""Draws and tries programs until the time is over; hypothesis shrinks what it finds. Needs no JAX."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from .description import KINDS, LAYOUTS, Program
from .drawing import programs
from .trying import Answer

IN_A_ROUND = 100
"""The programs of one call of hypothesis."""

SHRINKING = 120.0
"""The seconds for making a finding small."""


@dataclass(frozen=True)
class Finding:
    program: Program
    answer: Answer


@dataclass
class Campaign:
    """What was tried, and what was found."""

    ask: Callable[[Program], Answer]
    tried: int = 0
    """Programs that ran, without those of shrinking."""
    shrinking: int = 0
    unjudged: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    again: Counter[str] = field(default_factory=Counter)
    """Later programs with the signature of a finding."""
    seconds: float = 0.0

    def run(
        self,
        seconds: float,
        number: int,
        devices: int,
        kinds: Sequence[str] = KINDS,
        layouts: Sequence[str] = LAYOUTS,
        most: int = sys.maxsize,
    ) -> None:
        """Try programs for so many seconds, or so many programs. Equal numbers draw the same programs."""
        began = time.monotonic()
        place = 0
        while time.monotonic() < began + seconds and self.tried < most:
            self._round(began + seconds, f"{number}.{place}", devices, kinds, layouts, most)
            place += 1
        self.seconds = time.monotonic() - began

    def _round(
        self, end: float, number: str, devices: int, kinds: Sequence[str], layouts: Sequence[str], most: int
    ) -> None:
        trials = _Round(self, {one.answer.signature for one in self.findings}, end, most)

        def body(program: Program) -> None:
            # hypothesis takes failures of two lines for two.
            if trials.fails(program):
                raise _FoundError

        drawn = settings(
            max_examples=IN_A_ROUND,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        try:
            seed(number)(drawn(given(programs(devices, kinds, layouts))(body)))()
        except _FoundError:
            self.findings.append(trials.smallest[-1])
        except _OverError:
            pass


@dataclass
class _Round:
    """One call of hypothesis, until a finding is small."""

    campaign: Campaign
    known: set[str]
    end: float
    most: int
    smallest: list[Finding] = field(default_factory=list)
    """The failing programs in the order in which they were tried; hypothesis tries the smallest last."""
    failing: set[Program] = field(default_factory=set)

    def fails(self, program: Program) -> bool:
        campaign = self.campaign
        if program in self.failing:
            self.smallest.sort(key=lambda one: one.program == program)
            return True
        if not self.smallest and (time.monotonic() > self.end or campaign.tried >= self.most):
            raise _OverError
        if self.smallest and time.monotonic() > self.end:
            # What is not tried is not smaller.
            return False
        answer = campaign.ask(program)
        if self.smallest:
            campaign.shrinking += 1
            # Another signature is another defect: it will be found again.
            if answer.signature != self.smallest[0].answer.signature:
                return False
        elif answer.unjudged:
            campaign.unjudged[answer.unjudged] += 1
            return False
        else:
            campaign.tried += 1
            if not answer.kind:
                return False
            if answer.signature in self.known:
                campaign.again[answer.signature] += 1
                return False
            self.end = time.monotonic() + SHRINKING
        self.smallest.append(Finding(program, answer))
        self.failing.add(program)
        return True


class _FoundError(Exception):
    """Tells hypothesis that a program fails."""


class _OverError(BaseException):
    """Ends a call of hypothesis, which takes no such exception for a failure of the program."""
