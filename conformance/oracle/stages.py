"""The stage of a program's life in which an exception arose, and the cause of a platform's refusal."""

from __future__ import annotations

import importlib.util
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

from ..spec.package import PACKAGE
from .verdicts import Stage

_MARKS = (
    (Stage.COMPILE, "compiler.py", ("backend_compile", "backend_compile_and_load", "compile_or_get_cached")),
    (Stage.LOWER, "mlir.py", ("lower_jaxpr_to_module", "jaxpr_subcomp", "lower_jaxpr_to_fun")),
    (Stage.DISPATCH, "pxla.py", ("__call__",)),
    (Stage.RESULT, "array.py", ("_value", "__array__", "block_until_ready")),
)
"""Functions of JAX that show the stage if they are on the stack. They are private, and JAX may rename
them: then the stage is "trace", and no verdict changes."""


STACKS_LENGTH = 4000
"""A witness holds so many characters of the stacks of all threads."""


def stage_of(error: BaseException) -> Stage:
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    if stage := _marked(frames):
        return stage
    # An error of the runtime, from whose traceback a library has taken JAX's frames (hostcb's H32).
    if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
        return Stage.DISPATCH
    if "CpuCallback" in str(error) or "buffer callback" in str(error):
        return Stage.DISPATCH
    return Stage.TRACE


def stage_of_stacks(text: str) -> Stage | None:
    """The stage of the thread that Python's fault handler calls the current one, if its stack shows it.

    A crash in a thread of the runtime has no current thread of Python: then the stacks of all threads show the stage.
    """
    _, found, current = text.partition("Current thread ")
    thread = current.partition("\nThread ")[0] if found else text
    frames = re.findall(r'^  File "([^"]*)", line \d+ in (\S+)', thread, re.MULTILINE)
    return _marked(frames)


def _marked(frames: Iterable[tuple[str, str]]) -> Stage | None:
    named = [*frames]
    for stage, file_name, functions in _MARKS:
        if any(path.endswith(file_name) and name in functions for path, name in named):
            return stage
    return None


def stacks_in(text: str) -> str:
    """The stacks that Python's fault handler wrote for all threads; empty if it wrote none."""
    found = re.search(r"^(Fatal Python error: |Current thread |Thread 0x)", text, re.MULTILINE)
    return text[found.start() :].strip()[:STACKS_LENGTH] if found else ""


def refusal_of(error: BaseException, stage: Stage) -> str | None:
    """The cause, if the platform, not the library, reports that it does not support the program; otherwise None."""
    return refusal_in(str(error), stage)


def _folder(name: str) -> str:
    """Where a package is; `:`, with which no path begins, if it is not installed."""
    found = importlib.util.find_spec(name)
    return str(Path(found.origin).parent) + os.sep if found and found.origin else ":"


_KNOWN = tuple(map(_folder, ("jax", "jaxlib", "numpy", "hostcb", PACKAGE)))
"""Libraries whose frames say nothing of whose failure it is."""

_PYTHON = sysconfig.get_path("stdlib") + os.sep


def _raised_in(error: BaseException) -> str:
    """The last place on the way to an error that is in none of these libraries, such as in a vendor's plugin."""
    frames = [(frame.filename, str(frame.lineno), frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    # A plugin that calls Python reports a traceback as text.
    frames += re.findall(r'^\s*File "([^"]*)", line (\d+), in (\S+)', str(error), re.MULTILINE)
    for file, line, name in reversed(frames):
        of_python = file.startswith(_PYTHON) and "-packages" not in file
        if os.path.isabs(file) and not file.startswith(_KNOWN) and not of_python:
            return f" (in {name}, line {line} of {file})"
    return ""


def summary(error: BaseException) -> str:
    """An exception as one line of a report."""
    lines = [line.strip() for line in str(error).splitlines()]
    if any(line.endswith("Traceback (most recent call last):") for line in lines[:4]):
        # The callback's own exception says more than the first lines of its traceback.
        lines = [lines[0], *[line for line in lines if re.match(r"[\w.]+: ", line)][-1:]]
    return f"{type(error).__name__}: {' '.join(lines[:4])[:400]}{_raised_in(error)}"


_REFUSALS = (
    # JAX has no lowering rule for the platform, by its several words for that.
    r"MLIR translation rule for primitive '?[^' ]+'? not found for platform [\w.-]+",
    r"[Ll]owering rule (?:for [^\n]*? )?not found[^\n.;]*",
    r"No translation rule[^\n.;]*",
    # hostcb, and JAX's emitters.
    r"host callbacks are not supported on [\w.-]+",
    r"`?[\w.]+`? not supported on [\w.-]+ backend",
    r"Partitioned callback not implemented on [\w.-]+ backend",
    # The plugin.
    r"No (?:FFI handler|registered implementation)(?: was)?(?: registered)? for [^\n;]*?(?= on a platform|[,.;\n]|$)",
    r"UNIMPLEMENTED:? ?[^\n]*",
    r"[^\n.;:]* not supported on [^\n.;:]*",
)
_EARLY = (Stage.LOWER, Stage.COMPILE)
_FROM_THE_RUNTIME = re.compile(r"^(?:\w+: )?(?:UNIMPLEMENTED|NOT_FOUND: No (?:FFI handler|registered implementation))")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b\d{3,}\b")


def refusal_in(text: str, stage: Stage | None) -> str | None:
    """The cause, if this is the text of a platform's refusal of a program; otherwise None.

    While a program runs, only the runtime's own words count: the text of a callback's exception may quote anything.
    """
    if stage not in _EARLY and (not _FROM_THE_RUNTIME.match(text) or "CpuCallback" in text):
        return None
    for pattern in _REFUSALS:
        if found := re.search(pattern, text):
            # Addresses and numbers of objects differ from cell to cell.
            return " ".join(_NUMBERS.sub("#", found[0]).split())[:300]
    return None
