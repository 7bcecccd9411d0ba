"""Where in a program's life an exception arose."""

from __future__ import annotations

import traceback

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


def stage_of(error: BaseException) -> Stage:
    frames = traceback.extract_tb(error.__traceback__)
    for stage, file_name, functions in _MARKS:
        for frame in frames:
            if frame.filename.endswith(file_name) and frame.name in functions:
                return stage
    if "CpuCallback" in str(error) or "buffer callback" in str(error):
        return Stage.DISPATCH
    return Stage.TRACE


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
