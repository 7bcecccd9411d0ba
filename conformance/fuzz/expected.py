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
    stacked: bool = False
    """Whether the leaves have a leading axis for the lanes. The callback may get one that does not vary without it."""
    optional: bool = False
    """Whether it may as well not run: a rule of derivatives that gets nothing but zeros."""


@dataclass
class Expected:
    """Of one device."""

    calls: list[ExpectedCall] = field(default_factory=list)
    """In the order of the program."""
    results: tuple[npt.NDArray[Any], ...] = ()
