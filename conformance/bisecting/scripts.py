"""A user's script as what is tried in a release: its end and what it prints are the outcome."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .samples import OUTPUT, Sample, untestable

CANNOT_TEST = 125
"""The exit code by which a script says that it means nothing in this release, as for `git bisect run`."""

SHOWN = 60
"""So many characters of what a script prints are in the words of its outcome."""


def run_script(
    script: Path, python: Path, environment: Mapping[str, str], deadline: float, end_alone: bool = False
) -> Sample:
    """Run the script once. With `end_alone`, what it prints is not part of the outcome."""
    # Files, and not pipes: what the script has started may keep a pipe open for ever.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as complained:
        process = subprocess.Popen(
            [python, script.resolve()],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=complained,
            env=dict(environment),
            # Its own processes end with it, and Ctrl-C reaches this process alone.
            start_new_session=True,
        )
        try:
            end = _end(process.wait(deadline))
        except subprocess.TimeoutExpired:
            end = "hang"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        complained.seek(0)
        text, complaint = (file.read().decode(errors="replace") for file in (printed, complained))
    last = (complaint.strip().splitlines() or text.strip().splitlines() or [""])[-1].strip()
    if end == f"exit {CANNOT_TEST}":
        return untestable(last or f"the script ended with {CANNOT_TEST}")
    words = end if end_alone or end == "hang" else f"{end}{OUTPUT}{_printed(text)}"
    # What is in the words already is not told twice.
    more = [] if words == f"{end}{OUTPUT}{text.strip()}" else [text.strip()]
    return Sample(words, end == "exit 0", "\n".join(filter(None, [*more, *([last] if complaint.strip() else [])])))


def environment_of(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The user's environment, without what would bring modules of this Python into another one."""
    unwanted = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    kept = {name: value for name, value in inherited.items() if name not in unwanted}
    # What a script prints before it crashes or hangs is part of its outcome.
    return kept | {"PYTHONUNBUFFERED": "1"}


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
