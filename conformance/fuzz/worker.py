"""The process that tries programs: one a line on standard input, and what was found of it on standard output.

A program may crash or hang it; `trying` starts it, watches it, and takes a new one.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import traceback
from typing import Any

from ..implementations import load
from ..oracle.fair_deadline import MOST
from .description import from_json
from .trial import try_program
from .trying import MARK

LATER = 60.0
"""Seconds after the longest time that the parent waits for."""

KEPT_BY_JAX = 50
"""Programs after which JAX's caches are cleared: they keep each program, 8 MB on average, and an hour has thousands."""


def main(implementation: str, platform: str, deadline: str) -> None:
    import jax

    faulthandler.enable()
    loaded = load(implementation)
    devices = jax.devices(platform)
    _say({"devices": len(devices)})
    for number, line in enumerate(sys.stdin, 1):
        # The parent is more impatient. Without it nobody would end a process that hangs.
        faulthandler.dump_traceback_later(MOST * float(deadline) + LATER, exit=True)
        try:
            tried = try_program(from_json(json.loads(line)), loaded, devices)
        except Exception:
            # An error of the drawing, the interpreter or the comparison.
            _say({"suite": traceback.format_exc()})
            continue
        anomalies = [[one.kind, one.stage.value, one.witness] for one in tried.anomalies]
        _say({"anomalies": anomalies, "unjudged": tried.unjudged})
        if number % KEPT_BY_JAX == 0:
            jax.clear_caches()
            gc.collect()


def _say(found: dict[str, Any]) -> None:
    print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
