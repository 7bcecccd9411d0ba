"""The command line of one or all benchmarks, and measurements in a process of their own."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import picture, results
from benchmarks.rows import Row

ROOT = Path(__file__).parent.parent


def main(modules: Mapping[str, ModuleType], arguments: Sequence[str] | None, default: Sequence[str]) -> int:
    """Run the chosen benchmarks, print one table, write the chosen files, and return the exit status.

    With `--compare` only ratios that became worse count; a target missed before and after the change does not.
    """
    chosen = _options(modules, arguments)
    # Read first, so that a bad file fails before minutes of measuring.
    old = results.read(chosen.compare) if chosen.compare else None
    about = results.environment()
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    rows: list[Row] = []
    failed = []
    for name in chosen.only or default:
        print(f"running {name}", file=sys.stderr, flush=True)
        try:
            rows += modules[name].run(**({} if chosen.rounds is None else {"rounds": chosen.rounds}))
        except Exception:
            # The other benchmarks still run.
            traceback.print_exc()
            failed.append(name)
    if rows:
        print(results.table(rows))
    if chosen.json:
        results.write(chosen.json, rows, about)
    if chosen.svg:
        picture.write(chosen.svg, rows, about)
    for name in failed:
        print(f"FAILED to run: {name}")
    if old is None:
        return int(bool(failed) or any(row.verdict == "MISSED" for row in rows))
    worse = results.comparison(old, rows)
    unknown = {row.name for row in rows} - {row.name for row in old}
    print(f"compared with {chosen.compare}: {len(worse)} of {len(rows) - len(unknown)} ratios are worse than they were")
    for line in worse:
        print(f"WORSE {line}")
    return int(bool(failed or worse))


def _options(modules: Mapping[str, ModuleType], arguments: Sequence[str] | None) -> argparse.Namespace:
    alone = next(iter(modules)) if len(modules) == 1 else ""
    what = modules[alone].__doc__ if alone else "All benchmarks, one after the other."
    # Not `__name__`, which is __main__ if the module itself is the program.
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks{'.' * bool(alone)}{alone}", description=what)
    parser.add_argument(
        "--rounds", type=int, help="how often each program is measured; each benchmark has its own default"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures, for --compare and other programs")
    parser.add_argument("--svg", metavar="FILE", help="draw the ratios beside their targets")
    parser.add_argument("--compare", metavar="OLD.json", help="fail if a ratio became worse by more than both spreads")
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=list(modules),
        help=f"one of {', '.join(modules)}; repeatable",
    )
    return parser.parse_args(arguments)


def in_process(module: str, *arguments: Any, devices: int = 1) -> Any:
    """Run `python -m module arguments` in a new process with so many devices; parse its last line as JSON."""
    environment = dict(os.environ)
    environment["JAX_PLATFORMS"] = "cpu"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", environment.get("XLA_FLAGS", ""))
    environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-m", module, *map(str, arguments)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{module} ended with status {ended.returncode}:\n{ended.stderr[-4000:]}")
    return json.loads(ended.stdout.splitlines()[-1])
