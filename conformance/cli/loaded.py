"""The same run again and again on a machine that is busy with other things: is a result ever unexpected?

    python -m conformance run --loaded-by 4 --times 20 --results loaded

Each run is a process of its own, with its results in a folder of its own. `loaded.md` gets a line after each run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engine.options import AddOption, positive
from ..reports.results import UnreadableResultsError, load_results
from ..spec.package import PACKAGE
from ..worker.stress import stress

LOG = "loaded.md"
HEAD = "| run | JAX | cells | unexpected | seconds | seed | busy processes | exit code |\n" + "| --- " * 8 + "|\n"


def add_options(add: AddOption) -> None:
    add(
        "--loaded-by",
        type=positive(int),
        metavar="N",
        help="keep N processes busy meanwhile, and write what came of each run to loaded.md in the results folder",
    )
    add("--times", type=positive(int), metavar="M", help="with --loaded-by: run the cells M times, by default once")


def run_loaded(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the command with these arguments as often as asked for; 1 if any run was not as expected."""
    folder: Path = options.results
    folder.mkdir(parents=True, exist_ok=True)
    rest = _without_own(arguments)
    codes = []
    with (folder / LOG).open("w", encoding="utf-8") as log, stress(options.loaded_by):
        log.write(HEAD)
        for number in range(1, (options.times or 1) + 1):
            results = folder / f"run-{number}"
            command = [sys.executable, "-m", PACKAGE, *rest, "--results", str(results)]
            codes.append(subprocess.run(command, check=False).returncode)
            line = _line(number, results, options, codes[-1])
            print(line, flush=True)
            log.write(f"{line}\n")
            log.flush()
            if codes[-1] not in (0, 1):
                # Nothing was tested, and would be the next time.
                return codes[-1]
    return max(codes)


def _without_own(arguments: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser.add_argument)
    parser.add_argument("--results")
    return parser.parse_known_args(arguments)[1]


def _line(number: int, results: Path, options: argparse.Namespace, code: int) -> str:
    try:
        (run,) = load_results(results)
    except (UnreadableResultsError, ValueError):
        return f"| {number} | | no results | | | {options.seed} | {options.loaded_by} | {code} |"
    wrong = [cell.id for cell in run.unexpected]
    unexpected = " ".join([str(len(wrong)), *(f"`{cell}`" for cell in wrong)])
    jax = " ".join(sorted({_jax(info) for info in run.environment.values()}))
    cells: list[Any] = [number, jax, len(run.cells), unexpected, round(run.seconds), options.seed]
    return f"| {' | '.join(map(str, [*cells, options.loaded_by, code]))} |"


def _jax(info: Any) -> str:
    return str(info.get("jax", ""))
