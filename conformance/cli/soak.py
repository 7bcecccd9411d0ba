"""The command `soak`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..engine.options import positive
from ..engine.results_folder.locking import FolderLock
from ..soak.options import Options
from ..soak.watching import watch
from .helping import add_command, add_deadline

MINUTES = 60.0
MOST_DEVICES = 8


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "soak",
        "Several threads run programs with callbacks of all kinds on several devices, beside failures, signals, garbage"
        " collection and cleared caches. Each callback is checked, and forgotten. Memory, threads and"
        " descriptors must not grow.",
        ["--minutes 60", "--minutes 2 --seed 7", "--events 1000000 --results soak"],
        {
            0: "every callback was right, and nothing grows",
            1: "a callback was missing, doubled, out of order or wrong; something grows; or a crash or a hang",
            2: "bad input: nothing ran",
        },
    )
    parser.add_argument(
        "--minutes", type=positive(float), help=f"how long; by default {MINUTES:g}, or as --events says"
    )
    parser.add_argument("--events", type=positive(int), default=0, help="end after about so many callbacks")
    parser.add_argument("--seed", type=int, default=0, help="of each thread's plan")
    parser.add_argument("--devices", type=int, choices=range(1, MOST_DEVICES + 1), default=8, help="CPU devices")
    parser.add_argument("--threads", type=positive(int), default=4, help="threads that run programs")
    parser.add_argument("--implementation", default="hostcb", help="hostcb, or a module that has what hostcb has")
    parser.add_argument("--library", default="hostcb", help="the package whose objects must not become more")
    parser.add_argument("--results", type=Path, default=Path("results/soak"), metavar="DIR", help="where it writes")
    add_deadline(parser.add_argument, 120.0, "without any progress, for a hang")


def main(options: argparse.Namespace) -> int:
    asked = Options(
        minutes=options.minutes or (0.0 if options.events else MINUTES),
        events=options.events,
        seed=options.seed,
        devices=options.devices,
        threads=options.threads,
        implementation=options.implementation,
        library=options.library,
        deadline=options.deadline,
    )
    with FolderLock(options.results) as lock:
        lock.acquire()
        found = watch(asked, options.results, lambda line: print(line, file=sys.stderr, flush=True))
        found.write(options.results)
    print(found.summary())
    return found.exit_code
