"""Where in a program's life an exception arose."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

from conformance.verdicts import Stage

_MARKS = (
    (
        Stage.COMPILE,
        "compiler.py",
        ("backend_compile", "backend_compile_and_load", "compile_or_get_cached"),
    ),
    (Stage.LOWER, "mlir.py", ("lower_jaxpr_to_module", "jaxpr_subcomp", "lower_jaxpr_to_fun")),
    (Stage.DISPATCH, "pxla.py", ("__call__",)),
    (Stage.RESULT, "array.py", ("_value", "__array__", "block_until_ready")),
)
"""Functions of JAX whose presence on the stack gives the stage away. They are private and may be
renamed: then the stage reads "trace", and no verdict changes."""


STACKS_LENGTH = 4000
"""How much of the stacks of all threads a witness holds."""


def stage_of(error: BaseException) -> Stage:
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    if stage := _marked(frames):
        return stage
    if "CpuCallback" in str(error) or "buffer callback" in str(error):
        return Stage.DISPATCH
    return Stage.TRACE


def stage_of_stacks(text: str) -> Stage | None:
    """Where the thread was that Python's fault handler calls the current one, as far as its stack tells.

    A thread of the runtime is none of Python's: then it calls none the current one, and where the others wait tells.
    """
    _, found, current = text.partition("Current thread ")
    told = current.partition("\nThread ")[0] if found else text
    frames = re.findall(r'^  File "([^"]*)", line \d+ in (\S+)', told, re.MULTILINE)
    return _marked(frames)


def _marked(frames: Iterable[tuple[str, str]]) -> Stage | None:
    named = [*frames]
    for stage, file_name, functions in _MARKS:
        if any(path.endswith(file_name) and name in functions for path, name in named):
            return stage
    return None


def stacks_in(text: str) -> str:
    """What Python's fault handler wrote of all threads; empty if it wrote nothing."""
    found = re.search(r"^(Fatal Python error: |Current thread |Thread 0x)", text, re.MULTILINE)
    return text[found.start() :].strip()[:STACKS_LENGTH] if found else ""


def backend_says_unsupported(error: BaseException, stage: Stage) -> bool:
    """Whether the platform, not the library, declares that it cannot do this."""
    if stage not in (Stage.LOWER, Stage.COMPILE):
        return False
    text = str(error)
    return (
        "UNIMPLEMENTED" in text
        or "not supported on" in text
        or "No translation rule" in text
        or ("lowering rule" in text and "not found" in text)
    )
