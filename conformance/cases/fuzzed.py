"""The corpus of random programs as faults: programs that fuzzing has found, or that combine much, tried again."""

from __future__ import annotations

import functools

from ..fuzz.corpus import Kept, kept
from ..fuzz.description import calls_of
from ..fuzz.trial import try_program
from ..oracle.checkers import Anomaly
from .harness.bench import Bench
from .harness.registry import SLOWEST, Fault, enter

_LAYOUTS = {"eager": "jit", "mesh": "pjit"}
"""The names of the same layouts in the ids of faults."""


def _replay(one: Kept, bench: Bench) -> list[Anomaly]:
    tried = try_program(one.program, bench.implementation, bench.devices)
    if tried.unjudged:
        raise RuntimeError(f"the corpus has a program that the oracle cannot judge, {one.name}: {tried.unjudged}")
    return list(tried.anomalies)


def _fault(one: Kept) -> Fault:
    kinds = {call.kind for call in calls_of(one.program).values()}
    # The cell is one of hostcb's own callbacks if it has any: JAX then does not run it.
    callback = next((kind for kind in ("call", "id_tap") if kind in kinds), sorted(kinds)[0])
    layout = _LAYOUTS.get(one.program.layout, one.program.layout)
    return Fault(
        f"fuzz_{one.name}",
        layout,
        callback,
        ("C63",),
        functools.partial(_replay, one),
        minimum_devices=one.program.devices,
        deadline=SLOWEST,
    )


for each in kept():
    enter(_fault(each))
