"""The known failures of JAX's CPU: a failure on another platform may be one of them, and not the platform's."""

from __future__ import annotations

import functools

from ..expectations.entries import EXPECTATIONS, Expectation, Expectations, load_expectations
from ..oracle.verdicts import Outcome

CPU = "cpu"


def known_on_cpu(cell_id: str, outcome: Outcome) -> Expectation | None:
    """The entry about the same cell on the CPU, if that is known to fail in this way.

    It may be of another release of JAX: a plugin brings its own release of XLA.
    """
    program, _, topology = cell_id.rpartition("/")
    platform, dash, devices = topology.partition("-")
    on_cpu = f"{program}/{CPU}{dash}{devices}"
    entries = () if platform == CPU else _of_cpu().entries
    return next((entry for entry in entries if entry.matches(on_cpu) and entry.met_by(outcome)), None)


@functools.cache
def _of_cpu() -> Expectations:
    return load_expectations(EXPECTATIONS / f"{CPU}.toml")
