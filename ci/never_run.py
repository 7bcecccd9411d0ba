#!/usr/bin/env python3
"""Makes docs/never-run.md: the planned cells of accelerators that no run has executed on the hardware.

    python ci/never_run.py gpu-results --page docs/never-run.md
    python ci/never_run.py gpu-results --list cuda > plan.txt    # the cells, as `run --cell @FILE` reads them

The arguments are folders that `run --results` has written. Without any, no cell has run.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.planning.cells import Cell
from conformance.planning.selection import whole_plan_of
from conformance.reports.results import RunRecord, load_results

PLATFORMS = ("cuda", "rocm", "tpu")
DEVICE_COUNTS = (1, 4)
NOT_EXECUTED = ("missing", "harness_error")

HEAD = """\
# Cells that have never run

`python ci/never_run.py` made this page: the planned cells, on one and on four devices, for which there is no
result of a run on the hardware. What compilers and lowering show of them is described in
[platforms.md](platforms.md); it does not show transfers, threads, order at run time, errors or deadlocks.

| platform | planned | have run | have never run |
| --- | --: | --: | --: |
"""

TAIL = """
`python ci/never_run.py RESULTS --list PLATFORM` prints each cell, as `run --cell @FILE` reads them.

Taps of hostcb on CUDA have a second way, in C, which is off: H26 in
[contract.md](contract.md). `ci/gpu.sh` runs both ways; `HOSTCB_NATIVE_CUDA=1` turns the one in C on.
"""


def planned(platform: str) -> Sequence[Cell]:
    return whole_plan_of(("hostcb", "jax"), platform, DEVICE_COUNTS).cells


def never_run(cells: Sequence[Cell], runs: Sequence[RunRecord]) -> list[Cell]:
    """Those of the cells that no run has executed; what was lowered or compiled was not."""
    executed = {cell.id for run in runs if run.depth == "run" for cell in run.cells if cell.verdict not in NOT_EXECUTED}
    return [cell for cell in cells if cell.id not in executed]


def page(plans: Mapping[str, Sequence[Cell]], runs: Sequence[RunRecord]) -> str:
    left = {platform: never_run(cells, runs) for platform, cells in plans.items()}
    lines = [
        f"| {platform} | {len(cells):,} | {len(cells) - len(left[platform]):,} | {len(left[platform]):,} |"
        for platform, cells in plans.items()
    ]
    lines += ["", "By callback:", "", f"| callback | {' | '.join(plans)} |", f"| --- |{' --: |' * len(plans)}"]
    counts = {
        platform: Counter(f"{cell.implementation}/{cell.callback_name}" for cell in cells)
        for platform, cells in left.items()
    }
    for name in dict.fromkeys(name for of_platform in counts.values() for name in of_platform):
        lines.append(f"| `{name}` | {' | '.join(str(of_platform[name]) for of_platform in counts.values())} |")
    return HEAD + "\n".join(lines) + "\n" + TAIL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULTS")
    parser.add_argument("--list", choices=PLATFORMS, metavar="PLATFORM", help="print the ids of its cells")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page here; otherwise it is printed")
    options = parser.parse_args()
    runs = [run for folder in options.results for run in load_results(folder)]
    if options.list:
        print("\n".join(cell.id for cell in never_run(planned(options.list), runs)))
    else:
        text = page({platform: planned(platform) for platform in PLATFORMS}, runs)
        options.page.write_text(text) if options.page else print(text, end="")


if __name__ == "__main__":
    main()
