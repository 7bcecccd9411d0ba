"""Runs pip, of this environment or of another interpreter, with the user's own configuration and index."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .release import ReleaseError
from .running import run

DEADLINE = 900.0
"""Seconds for one command: jaxlib may come over a slow connection."""

# Debian takes the wheels out of ensurepip, and often ensurepip out of Python, and names a folder of its own.
_ASK_WHEELS = """\
import importlib.util, sysconfig
found = importlib.util.find_spec("ensurepip")
for folder in (found and found.submodule_search_locations) or ():
    print(folder + "/_bundled")
print(sysconfig.get_config_var("WHEEL_PKG_DIR") or "")
"""


def pip(python: Path, *arguments: str, deadline: float = DEADLINE) -> subprocess.CompletedProcess[str]:
    """Run pip with an interpreter, and return what it wrote; raises `ReleaseError` if there is no pip or no end."""
    command = [*pip_of(python), "--disable-pip-version-check", "--no-input", "--no-color", *arguments]
    # A message in another language would not be understood.
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PIP_REQUIRE_VIRTUALENV": "0"}
    environment.pop("PYTHONPATH", None)
    try:
        return run(command, environment=environment, deadline=deadline)
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"pip did not answer within {deadline:.0f} s: is the package index reachable?") from error


@functools.cache
def pip_of(python: Path) -> tuple[str, ...]:
    """The command of a pip that runs in this interpreter: its own, or the one that Python brings for `venv`."""
    own = (str(python), "-m", "pip")
    if not subprocess.run([*own, "--version"], capture_output=True, check=False).returncode:
        return own
    for other in dict.fromkeys((str(python), sys.executable)):
        answer = subprocess.run([other, "-c", _ASK_WHEELS], capture_output=True, text=True, check=False).stdout
        for folder in filter(None, answer.splitlines()):
            for wheel in sorted(Path(folder).glob("pip-*.whl")):
                return str(python), str(wheel / "pip")
    raise ReleaseError(f"{python} has no pip, with which to ask for releases of JAX: install pip there")


def last_error(written: str) -> str:
    """The words of pip that say best what went wrong."""
    if words := no_connection(written):
        return words
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    errors = [line.partition(":")[2].strip() for line in lines if re.match(r"error:", line, re.IGNORECASE)]
    # The list of all versions is no help in one line.
    short = [line for line in errors if "(from versions:" not in line]
    return [*short[:1], *lines[-1:], "pip wrote nothing"][0][:300]


def no_connection(written: str, to: str = "it") -> str:
    """That pip cannot connect to the index, with the cause; empty if it did not complain of that."""
    if not re.search("connection broken|Could not fetch URL", written):
        return ""
    cause = re.search(r"\[Errno [^\]]*\] [^'\")]+|timed out|certificate verify failed", written)
    return f"pip cannot connect to {to}" + (f" ({cause[0]})" if cause else "")


def says_disk_full(written: str) -> bool:
    return "No space left on device" in written or "Disk quota exceeded" in written


def joined(ended: subprocess.CompletedProcess[str]) -> str:
    return f"{ended.stdout}\n{ended.stderr}"


def installing(python: Path, environment: Path, packages: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Install packages into an environment that has no pip itself."""
    inside = str(environment / "bin" / "python")
    # Compiling all of SciPy takes longer than installing it; Python compiles what a worker imports.
    return pip(python, "--python", inside, "install", "--no-compile", "--quiet", *packages)
