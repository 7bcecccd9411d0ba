"""The known failures of JAX's CPU: a failure on another platform may be one of them, and not the platform's."""

from __future__ import annotations

import functools
import re

from ..expectations.entries import EXPECTATIONS, Expectation, Expectations, load_expectations
from ..oracle.verdicts import Outcome, Verdict

CPU = "cpu"
SEVERAL = 8
"""The entries name so many devices for what needs several."""


def known_on_cpu(cell_id: str, outcome: Outcome) -> Expectation | None:
    """The entry about the same cell on the CPU, if that is known to fail in this way.

    It may be of another release of JAX: a plugin brings its own release of XLA. A flake is a failure by chance.
    """
    program, _, topology = cell_id.rpartition("/")
    platform, _, devices = topology.rpartition("-")
    if platform == CPU:
        return None
    of_number = f"{program}/{CPU}-{devices}"
    # One device stays one: what fails there needs no others.
    of_several = re.sub(r"-(?!1dev)\d+dev", f"-{SEVERAL}dev", of_number)
    entries = [one for one in _of_cpu().entries if _meets(one, outcome)]
    return next((one for cell in (of_number, of_several) for one in entries if one.matches(cell)), None)


def _meets(entry: Expectation, outcome: Outcome) -> bool:
    if outcome.verdict is Verdict.FLAKE:
        return entry.intermittent and entry.stage in (None, outcome.stage)
    return entry.met_by(outcome)


@functools.cache
def _of_cpu() -> Expectations:
    return load_expectations(EXPECTATIONS / f"{CPU}.toml")
