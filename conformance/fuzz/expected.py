"""What the oracle expects of one device, and why it may not judge a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt


class UnjudgedError(Exception):
    """The oracle does not know what this program must do; the text says why. It is not run."""


class UnknownOperationError(Exception):
    """The traced program has an operation that the oracle lacks: the drawing, the source and the oracle disagree."""


@dataclass(frozen=True)
class ExpectedCall:
    """One run of a callback."""

    label: int
    kind: str
    leaves: tuple[npt.NDArray[Any], ...]
    lanes: int = 0
    """How many leading axes of the leaves are for lanes. The callback may get a leaf without those that it lacks."""
    optional: bool = False
    """Whether it may as well not run: a rule of derivatives that gets nothing but zeros."""
    group: int = 0
    """Calls of one group come in any order; 0 is for none."""


@dataclass
class Expected:
    """Of one device."""

    calls: list[ExpectedCall] = field(default_factory=list)
    """In the order of the program."""
    results: tuple[npt.NDArray[Any], ...] = ()
