"""A user's script as what is asked of a release: its end and what it prints are the outcome."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .samples import OUTPUT, Sample, untestable

CANNOT_TEST = 125
"""The exit code by which a script says that it means nothing in this release, as for `git bisect run`."""

SHOWN = 60
"""So many characters of what a script prints are in the words of its outcome."""

LAST_WORDS = 2.0
"""Seconds for what a killed script has printed to come out of its pipes."""

ENDS_WITH_PARENT = """\
import ctypes, os, signal, sys
set_parent_death_signal = 1
ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A script that hangs must not outlive a killed search. The setting stays when the process becomes the script's."""


def run_script(
    script: Path, python: Path, environment: Mapping[str, str], deadline: float, end_alone: bool = False
) -> Sample:
    """Run the script once. With `end_alone`, what it prints is not part of the outcome."""
    started = time.monotonic()
    process = subprocess.Popen(
        [python, *_first_arguments(), script.resolve()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        # Its own processes end with it, and Ctrl-C reaches this process alone.
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=deadline)
        end = _end(process.returncode)
    except subprocess.TimeoutExpired:
        _kill(process)
        printed, errors = _rest(process)
        end = "hang"
    finally:
        _kill(process)
        # Also after an interrupt: the search ends after its scripts.
        process.wait()
    seconds = time.monotonic() - started
    text, complaint = (each.decode(errors="replace") for each in (printed, errors))
    if process.returncode == CANNOT_TEST and end != "hang":
        return untestable(_last_line(complaint) or _last_line(text) or f"the script ended with {CANNOT_TEST}")
    words = end if end_alone or end == "hang" else f"{end}{OUTPUT}{_printed(text)}"
    # What is in the words already is not told twice.
    more = "" if words == f"{end}{OUTPUT}{text.strip()}" else text.strip()
    return Sample(words, end == "exit 0", "\n".join(filter(None, (more, _last_line(complaint)))), seconds)


def _first_arguments() -> list[str]:
    return ["-I", "-S", "-c", ENDS_WITH_PARENT] if sys.platform == "linux" else []


def environment_of(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The user's environment, without what would bring modules of this Python into another one."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    kept = {name: value for name, value in inherited.items() if name not in unwanted}
    # What a script prints before it crashes or hangs is part of its outcome.
    return kept | {"PYTHONUNBUFFERED": "1"}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the script and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _rest(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """All that a killed script has printed. What it started in another session may hold the pipes for ever."""
    try:
        return process.communicate(timeout=LAST_WORDS)
    except subprocess.TimeoutExpired as error:
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
        return error.stdout or b"", error.stderr or b""


def _end(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    try:
        return f"crash({signal.Signals(-code).name})"
    except ValueError:
        return f"crash(signal {-code})"


def _printed(text: str) -> str:
    """What was printed, short enough for a line, and different for different texts."""
    line = " | ".join(text.split("\n")).strip(" |")
    if not line:
        return "nothing"
    if len(line) <= SHOWN:
        return line
    return f"{line[: SHOWN - 3]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()
