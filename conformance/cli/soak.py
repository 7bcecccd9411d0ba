"""The command `soak`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from ..engine.options import positive
from ..spec.package import module
from ..spec.topology import Topology
from ..worker.processes import worker_environment
from .helping import add_command, add_deadline

MINUTES = 60.0
MOST_DEVICES = 8
NAMES = ("events", "seed", "devices", "threads", "implementation", "library", "deadline")

OF_THE_C_LIBRARY = {"MALLOC_TRIM_THRESHOLD_": str(128 << 10), "MALLOC_MMAP_THRESHOLD_": str(16 << 20)}
"""Variables of glibc, which keeps the end of an arena, of which there are eight a core, unless more than a threshold is
free there, and raises that threshold up to 64 MiB. So the resident memory of threads that free arrays would rise for a
long time, with nothing leaked."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "soak",
        "Several threads run programs with callbacks of all kinds on several devices, beside failures, signals, garbage"
        " collection and cleared caches. Each callback is checked, and forgotten. Memory, threads and"
        " descriptors must not grow.",
        ["--minutes 60", "--minutes 2 --seed 7", "--events 1000000"],
        {
            0: "every callback was right, and nothing grows",
            1: "a callback was missing, doubled, out of order or wrong; something grows; or a hang",
            2: "bad input: nothing ran",
            134: "a crash: the code is that of its signal, here SIGABRT",
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
    add_deadline(parser.add_argument, 120.0, "without any progress, for a hang")


def main(options: argparse.Namespace) -> int:
    asked = {name: getattr(options, name) for name in NAMES}
    asked["minutes"] = options.minutes or (0.0 if options.events else MINUTES)
    environment = worker_environment(Topology("cpu", options.devices), (), os.environ | OF_THE_C_LIBRARY)
    # The soak takes this process's place, with the environment that JAX and the C library read when they start.
    os.execve(sys.executable, [sys.executable, "-m", module("cli.soak_process"), json.dumps(asked)], environment)
