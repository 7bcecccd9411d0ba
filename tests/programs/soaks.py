"""Short soaks, one after another: of hostcb, and of hostcb with defects. Says what each found, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

import hostcb
from conformance.implementations import load
from conformance.implementations.hostcb import Hostcb
from conformance.mutants.host_functions import surround
from conformance.mutants.implementation import Broken
from conformance.mutants.mutant import Library, Mutant, Names
from conformance.soak.rounds import Soak

KEPT: list[Any] = []


def _leaking(library: Library) -> Names:
    def run(function: Any, *arguments: Any, **options: Any) -> Any:
        KEPT.append([object() for _ in range(30)])
        return function(*arguments, **options)

    return surround(library, run, "id_tap")


def _reusing(library: Library) -> Names:
    """As the mutant `shared_buffer`, without its lock, under which a callback of a soak could not run a program."""
    buffers: dict[Any, Any] = {}

    def reused(leaf: Any) -> Any:
        buffer = buffers.setdefault((leaf.shape, leaf.dtype), np.empty_like(leaf))
        buffer[...] = leaf
        return buffer

    def run(function: Any, operand: Any, *arguments: Any, **options: Any) -> Any:
        return function(jax.tree.map(reused, operand), *arguments, **options)

    return surround(library, run, "id_tap")


OWN = {"leaking": _leaking, "reusing": _reusing}


def implementation(name: str) -> Hostcb:
    if name in OWN:
        return Broken(Mutant(name, name, OWN[name], (), ()))
    loaded: Any = load(name)
    return loaded


def soak(name: str, options: dict[str, Any]) -> dict[str, Any]:
    one = Soak(implementation(name), jax.devices(), **options)
    one.run()
    found = one.found()
    return {
        "anomalies": [str(anomaly) for anomaly in one.record.anomalies],
        "growing": found.growing,
        "events": one.record.events,
        "summary": found.summary(),
    }


if __name__ == "__main__":
    assert hostcb
    asked = json.loads(sys.argv[1])
    print(json.dumps({name: soak(name, options) for name, options in asked.items()}))
