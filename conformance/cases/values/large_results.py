"""Cases of large results in any layout: their memory may be copied in another way than that of small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ...spec.thresholds import BLOCK, PAST_CACHES
from ..harness.case import Case, case
from ..harness.registry import WITH_RESULTS

COLUMNS = 512

FORMS: dict[str, Callable[[Any], Any]] = {
    "in Fortran order": np.asfortranarray,
    "upside down": lambda array: array[::-1].copy()[::-1],
    "right to left": lambda array: array[:, ::-1].copy()[:, ::-1],
    "every second row of another": lambda array: np.repeat(array, 2, axis=0)[::2],
    "every second column of another": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "a part of the columns of another": lambda array: np.hstack([array, array])[:, : array.shape[1]],
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "not aligned": lambda array: (
        np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)
    ),
}


@case("jit", f"{WITH_RESULTS} dlpack_callback", "H3 X2 X3 D1")
def large_forms_of_results(case: Case) -> None:
    """Results in each order of their memory reach the device as they are, on both sides of the thresholds of copies."""
    for nbytes in (BLOCK // 2, PAST_CACHES + COLUMNS * 4):
        rows = nbytes // 4 // COLUMNS
        wanted = np.arange(rows * COLUMNS, dtype=np.float32).reshape(rows, COLUMNS)
        for what, form in FORMS.items():
            result = form(wanted)
            program = jax.jit(lambda x, r=result, w=wanted: case.apply(lambda _: r, x, w))
            for run in range(2):
                wrong = int((np.asarray(program(np.float32(run))) != wanted).sum())
                case.same("result", Stage.RESULT, wrong, 0, f"wrong ones of {wanted.size} numbers {what} in run {run}")
