"""Starts the process of a soak, says how far it is, and how it ended. This side does not import JAX."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..spec.errors import CommandError
from ..spec.topology import Topology
from ..worker.processes import worker_environment
from .found import Found
from .options import Options

REFUSED = 2
SAY_SECONDS = 10.0
LOG = "stderr.log"

TIMEOUT = "Timeout ("
"""With this `faulthandler` begins the stacks of a process that it ends."""


class RefusedError(CommandError):
    """A soak that cannot begin; the text says why."""


def watch(
    options: Options, results: Path, say: Callable[[str], None], program: Sequence[str] = ("-m", __package__)
) -> Found:
    """Run a soak in a process of its own, by this program. Ctrl-C lets it come to an end, and a second one kills it."""
    started = said = time.monotonic()
    log = results / LOG
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *program, json.dumps(asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=worker_environment(Topology("cpu", options.devices), (), os.environ),
            # Ctrl-C must reach only the command, which ends the soak itself.
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, interrupts, last = process.stdin, 0, dict[str, Any]()

    def interrupt(*_: object) -> None:
        # No exception: it could come between a report and what is made of it.
        nonlocal interrupts
        interrupts += 1
        process.kill() if interrupts > 1 else stdin.close()

    # A shell starts what runs in the background with SIGINT ignored, which stays so.
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        for line in process.stdout:
            report = json.loads(line)
            if "refused" in report:
                raise RefusedError(report["refused"])
            if not last:
                say(
                    f"a soak of {options.implementation} with JAX {report['jax']} on Python {report['python']}: "
                    f"{options.threads} threads, {options.devices} devices, seed {options.seed}"
                )
            last = report
            if report.get("ended"):
                break
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                say(_progress(report, said - started))
                if interrupts:
                    say("interrupted: the threads end what they do; once more to end at once")
        else:
            last = {**last, "anomalies": [_broken(process.wait(), interrupts, log, last.get("waiting", ()))]}
    finally:
        signal.signal(signal.SIGINT, before)
        process.kill()
        process.wait()
        stdin.close()
        process.stdout.close()
    return Found(options, {**last, "interrupted": interrupts > 0}, time.monotonic() - started)


def _broken(code: int, interrupts: int, log: Path, waiting: Sequence[str]) -> dict[str, str]:
    """The anomaly of a process that ended before the soak had."""
    written = log.read_text(errors="replace")
    if interrupts > 1:
        kind, witness = "interrupted", "a second interrupt came before the soak had ended"
    elif TIMEOUT in written:
        stacks = written[written.rindex(TIMEOUT) :]
        kind, witness = "hang", f"nothing went on; the stacks of all threads:\n{stacks[:12_000].strip()}"
    else:
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        kind, witness = "crash", f"the process of the soak ended with {cause}; it wrote:\n{written[-12_000:].strip()}"
    if waiting:
        witness += "\nprograms that are not over:\n" + "\n".join(f"  {line}" for line in waiting)
    return {"kind": kind, "witness": witness}


def _progress(report: dict[str, Any], seconds: float) -> str:
    rate = report["events"] / seconds
    return (
        f"{seconds:6.0f} s: {report['events']:,} events of {report['runs']:,} runs, {rate:,.0f} events/s, "
        f"{report['rounds']} rounds, {report['found']} anomalies"
    )
