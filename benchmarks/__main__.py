"""Run all benchmarks one after the other and print one table: `python -m benchmarks`.

The exit status is 1 if a target is missed or a benchmark failed; with `--compare`, if a ratio became worse.
"""

from __future__ import annotations

import sys

from benchmarks import (
    busy,
    devices,
    eager,
    interval,
    large,
    loop,
    matrix,
    memory,
    overlap,
    parts,
    single,
    staging,
    training,
)
from benchmarks.running import main

MODULES = {
    "busy": busy,
    "training": training,
    "interval": interval,
    "loop": loop,
    "single": single,
    "eager": eager,
    "large": large,
    "parts": parts,
    "overlap": overlap,
    "devices": devices,
    "staging": staging,
    "memory": memory,
    "matrix": matrix,
}
# The matrix takes longer than all others together, so it runs only with `--only matrix`.
DEFAULT = [name for name in MODULES if name != "matrix"]

if __name__ == "__main__":
    sys.exit(main(MODULES, None, DEFAULT))
