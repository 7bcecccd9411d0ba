"""The command `soak`. It starts itself again in a process with the environment that a soak needs.

A crash or a hang ends that with the stacks of all threads. The first SIGINT ends the soak early, the second at once.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import platform
import signal
import sys
import threading
import time
from typing import Any

from ..engine.options import positive
from ..spec.package import PACKAGE
from ..spec.topology import Topology
from ..worker.processes import worker_environment
from .helping import add_command, add_deadline

MINUTES = 60.0
MOST_DEVICES = 8
NAMES = ("minutes", "events", "seed", "threads")
START_SECONDS, PROGRESS_SECONDS, SAY_SECONDS = 120.0, 1.0, 10.0
MOST_WAITING = 12
NEEDED = ("id_tap", "call", "barrier_wait")

STARTED = "HOSTCB_CONFORMANCE_SOAK"
"""The environment variable of the process that soaks."""

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
    add_deadline(parser.add_argument, 120.0, "without any progress, for a hang")


def main(options: argparse.Namespace) -> int:
    if os.environ.get(STARTED) != "1":
        environment = worker_environment(Topology("cpu", options.devices), (), os.environ | OF_THE_C_LIBRARY)
        # It takes this process's place, with the environment that JAX and the C library read when they start.
        os.execve(sys.executable, [sys.executable, "-m", PACKAGE, *sys.argv[1:]], environment | {STARTED: "1"})
    options.minutes = options.minutes or (0.0 if options.events else MINUTES)
    return _soak(options)


def _soak(options: argparse.Namespace) -> int:
    faulthandler.enable()
    _expect_progress(START_SECONDS + options.deadline)
    # Else each failure that the soak plants would be a line of the log.
    logging.disable()

    import jax

    from ..implementations import ImplementationError, load
    from ..soak.rounds import Soak

    implementation: Any = load(options.implementation)
    namespace = getattr(implementation, "namespace", None)
    if missing := [each for each in NEEDED if not hasattr(namespace, each)]:
        raise ImplementationError(
            f"a soak needs {', '.join(NEEDED)}, and {options.implementation} lacks {', '.join(missing)}"
        )
    soak = Soak(implementation, jax.devices()[: options.devices], **{name: getattr(options, name) for name in NAMES})

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        soak.stopped.set()
        _say("interrupted: the threads end what they do; once more to end at once")

    # A shell starts what runs in the background with SIGINT ignored, which stays so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    versions = f"JAX {jax.__version__} on Python {platform.python_version()}"
    about = f"{soak.threads} threads, {len(soak.devices)} devices, seed {soak.seed}"
    _say(f"a soak of {options.implementation} with {versions}: {about}")
    ended = threading.Event()
    saying = threading.Thread(target=_say_progress, args=(soak, options.deadline, ended), name="progress", daemon=True)
    saying.start()
    soak.run()
    ended.set()
    saying.join()
    faulthandler.cancel_dump_traceback_later()
    found = soak.found()
    print(found.summary())
    return found.exit_code


def _say_progress(soak: Any, deadline: float, ended: threading.Event) -> None:
    before, said = soak.progress(), time.monotonic()
    while not ended.wait(PROGRESS_SECONDS):
        if (now := soak.progress()) != before:
            _expect_progress(deadline)
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            _say(f"  {soak.found()}")
            if now == before:
                waiting = soak.record.waiting()[:MOST_WAITING]
                _say("\n  ".join(("nothing goes on; programs that are not over:", *waiting)))
        before = now


def _expect_progress(seconds: float) -> None:
    """End the process with its stacks if this is not called again in time: also if a thread never lets the lock go."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
