"""The command `never-run`: which planned cells of accelerators no run has executed on the hardware."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.preparation import IMPLEMENTATIONS
from ..planning.cells import Cell
from ..planning.selection import whole_plan_of
from ..reports.results import RunRecord, load_results
from ..spec.package import COMMAND
from .helping import add_command

PLATFORMS = ("cuda", "rocm", "tpu")
DEVICE_COUNTS = (1, 4)

_NOT_EXECUTED = ("missing", "harness_error")


@dataclass(frozen=True)
class NeverRun:
    platform: str
    planned: int
    cells: tuple[Cell, ...]
    """Those that have never run."""
    shown: Mapping[str, int]
    """How many of them were lowered, compiled or refused at a depth at which nothing runs."""

    @property
    def callbacks(self) -> Counter[str]:
        return Counter(f"{cell.implementation}/{cell.callback_name}" for cell in self.cells)


def never_run(platform: str, runs: Sequence[RunRecord]) -> NeverRun:
    plan = whole_plan_of(IMPLEMENTATIONS, platform, DEVICE_COUNTS)
    own = [run for run in runs if run.platform == platform]
    executed = {cell.id for run in own if run.depth == "run" for cell in run.cells if cell.verdict not in _NOT_EXECUTED}
    left = tuple(cell for cell in plan.cells if cell.id not in executed)
    ahead = {
        cell.id.rpartition("@")[0]: cell.shown
        for depth in ("lower", "compile")
        for run in own
        if run.depth == depth
        for cell in run.cells
        if cell.shown
    }
    shown = Counter(ahead[cell.id] for cell in left if cell.id in ahead)
    return NeverRun(platform, len(plan.cells), left, shown)


def page(found: Sequence[NeverRun]) -> str:
    lines = [
        "# Cells that have never run",
        "",
        f"`{COMMAND} never-run` made this page: the planned cells, on one and on four devices, for which there is no",
        "result of a run on the hardware. What compilers and lowering show of them is described in",
        "[platforms.md](platforms.md); it does not show transfers, threads, order at run time, errors or deadlocks.",
        "",
        "| platform | planned | have run | have never run | of these lowered, compiled or refused without hardware |",
        "| --- | --: | --: | --: | --- |",
    ]
    for one in found:
        shown = ", ".join(f"{count} {what}" for what, count in sorted(one.shown.items())) or "not in these results"
        ran = one.planned - len(one.cells)
        lines.append(f"| {one.platform} | {one.planned:,} | {ran:,} | {len(one.cells):,} | {shown} |")
    lines += ["", "By callback:", "", f"| callback | {' | '.join(one.platform for one in found)} |"]
    lines.append(f"| --- |{' --: |' * len(found)}")
    for name in dict.fromkeys(name for one in found for name in one.callbacks):
        lines.append(f"| `{name}` | {' | '.join(str(one.callbacks[name]) for one in found)} |")
    lines += ["", f"`{COMMAND} never-run --list` prints each cell, as `run --plan` reads them."]
    if any(one.platform == "cuda" for one in found):
        lines += [
            "",
            "Taps of hostcb on CUDA have a second way, in C, which is off: H26 in",
            "[contract.md](contract.md). `ci/gpu.sh` runs both ways; `HOSTCB_NATIVE_CUDA=1` turns the one in C on.",
        ]
    return "\n".join(lines) + "\n"


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "never-run",
        "which cells of accelerators have never run",
        "Compare the planned cells of cuda, rocm and tpu with results: which of them has no hardware ever run?",
        ["--markdown docs/never-run.md", "--results gpu-results", "--platform cuda --list"],
        {0: "the page or the list was made", 2: "bad input"},
    )
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="what a run has written; may be repeated, and without it no cell has run",
    )
    parser.add_argument("--platform", choices=PLATFORMS, action="append", help="this one alone; may be repeated")
    parser.add_argument("--list", action="store_true", dest="as_list", help="print the ids of the cells")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page here, and print nothing")


def main(options: argparse.Namespace) -> int:
    runs = [run for folder in options.results for run in load_results(folder)]
    found = [never_run(platform, runs) for platform in options.platform or PLATFORMS]
    if options.as_list:
        for one in found:
            for cell in one.cells:
                print(cell.id)
    elif options.markdown:
        options.markdown.write_text(page(found))
    else:
        print(page(found), end="")
    return 0
