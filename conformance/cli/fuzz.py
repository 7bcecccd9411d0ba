"""The command `fuzz`."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..engine.locking import FolderLock
from ..engine.options import positive
from ..engine.tools import MissingToolError
from ..fuzz.corpus import text_of
from ..fuzz.description import KINDS, LAYOUTS, ON_ONE_DEVICE, OWN_KINDS, calls_of
from ..fuzz.trying import Trying, WorkerError
from ..spec.errors import CommandError
from ..spec.package import module
from .helping import add_command

OF_JAX = tuple(kind for kind in KINDS if kind not in OWN_KINDS)


class UnfitChoiceError(CommandError):
    """Nothing can be drawn from what was chosen."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "fuzz",
        "Draw programs, run them, and compare results and callbacks with an interpreter of the traced program. What is"
        " found is made small, and written as a program of its own and as an entry for the corpus.",
        ["--seconds 600 --seed 7", "--implementation jax", "--only id_tap call --layout shard_map"],
        {
            0: "every program did what it must",
            1: "a program did not",
            2: "bad input, or a worker that does not start: nothing was tested",
        },
    )
    parser.add_argument("--seconds", type=positive(float), default=60.0, help="draw new programs for so long")
    parser.add_argument("--programs", type=positive(int), help="or so many, whatever comes first")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="equal seeds draw the same programs")
    parser.add_argument("--implementation", default="hostcb", metavar="NAME", help="hostcb, jax, or an import path")
    parser.add_argument("--platform", default="cpu", metavar="NAME", help="a platform of JAX")
    parser.add_argument("--devices", type=positive(int), default=4, metavar="N", help="at most so many devices")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help=f"these callbacks: {', '.join(KINDS)}")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, help="these layouts")
    parser.add_argument(
        "--deadline", type=positive(float), default=60.0, metavar="SECONDS", help="for each program; then it hangs"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results/fuzz"), metavar="DIR", help="where findings are written"
    )


def main(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("hypothesis") is None:
        raise MissingToolError("fuzz draws programs with hypothesis: pip install 'hostcb[fuzz]'")
    # Not before: it imports hypothesis.
    from ..fuzz.campaign import Campaign

    kinds = tuple(options.only or (OF_JAX if options.implementation == "jax" else KINDS))
    if options.implementation == "jax" and (missing := [one for one in kinds if one not in OF_JAX]):
        raise UnfitChoiceError(f"JAX has no {missing[0]}: choose among {', '.join(OF_JAX)}")
    layouts = tuple(options.layout or LAYOUTS)
    with FolderLock(options.results) as lock:
        lock.acquire()
        with Trying(options.implementation, options.platform, options.devices, options.deadline) as trying:
            if trying.devices < 2 and not set(layouts) & set(ON_ONE_DEVICE):
                raise UnfitChoiceError(f"the layout {layouts[0]} needs two devices, and there is one")
            campaign = Campaign(trying.ask)
            try:
                campaign.run(
                    options.seconds, options.seed, trying.devices, kinds, layouts, options.programs or sys.maxsize
                )
            except KeyboardInterrupt:
                print("stopped", file=sys.stderr)
        paths = [_write(options, number, finding) for number, finding in enumerate(campaign.findings, 1)]
    rate = campaign.tried / campaign.seconds if campaign.seconds else 0.0
    print(f"{campaign.tried} programs in {campaign.seconds:.0f} s ({rate:.1f} a second), seed {options.seed}")
    if campaign.shrinking:
        print(f"{campaign.shrinking} more to make findings small")
    for reason, count in campaign.unjudged.most_common():
        print(f"not run: {count} ({reason})")
    for path, finding in zip(paths, campaign.findings, strict=True):
        more = campaign.again[finding.answer.signature]
        print(f"FOUND {finding.answer.kind}: {finding.answer.witness.splitlines()[0]} ({more} more); {path}")
    return 1 if campaign.findings else 0


def _write(options: argparse.Namespace, number: int, finding: Any) -> Path:
    """Write a finding as an entry of the corpus and, beside it, as a program of its own."""
    kinds = "_".join(sorted({one.kind for one in calls_of(finding.program).values()}))
    path: Path = options.results / f"{options.seed}_{number}_{finding.answer.kind.replace(' ', '_')}_{kinds}.json"
    path.write_text(text_of(finding.program, finding.answer.witness))
    command = [sys.executable, "-m", module("fuzz.printing"), str(path), options.implementation]
    written = subprocess.run(command, capture_output=True, text=True, check=False)
    if written.returncode:
        raise WorkerError(f"the program of {path} could not be written: {written.stderr}")
    path.with_suffix(".py").write_text(written.stdout)
    return path.with_suffix(".py")
