"""Where the time of a callback goes, operation by operation: `python -m benchmarks.parts`.

Each subject is a 100-step loop whose callback does one operation more than the previous one. The first is the floor:
JAX's buffer callback with an empty function, which only enters and leaves Python. There are no targets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from benchmarks import running
from benchmarks.loop import STEPS, looped
from benchmarks.measuring import measure, rows_of
from benchmarks.rows import Row
from benchmarks.subjects import SUBJECTS, Subject, shape_of

FLOOR = "an empty buffer callback"


def empty(_: Any, out: Any, value: Any) -> None:
    pass


def _view(_: Any, out: Any, value: Any) -> None:
    np.asarray(value)


def _copy(_: Any, out: Any, value: Any) -> None:
    np.asarray(value).copy()


def _two_views(_: Any, out: Any, value: Any) -> None:
    np.asarray(value).copy()
    np.asarray(out)


def _copyto(_: Any, out: Any, value: Any) -> None:
    np.copyto(np.asarray(out), np.asarray(value).copy())


def _lent_copyto(_: Any, out: Any, value: Any) -> None:
    np.copyto(np.from_dlpack(out), np.from_dlpack(value))


def filled(function: Callable[..., None]) -> Subject:
    return lambda value: buffer_callback(function, shape_of(value))(value)


_OURS = ("pure_callback", "call", "id_tap", "debug.callback")
_JAX = ("jax pure_callback", "jax io_callback", "jax io_callback(ordered=True)", "jax debug.callback")

PARTS: dict[str, Subject] = {
    "the loop, without a callback": jnp.sin,
    FLOOR: filled(empty),
    "and a view of the operand": filled(_view),
    "and a copy of it": filled(_copy),
    "and a view of the result": filled(_two_views),
    "and a copy into it": filled(_copyto),
    "two views by DLPack, one copy": filled(_lent_copyto),
    **{name: SUBJECTS[name] for name in _OURS},
    **{name: SUBJECTS[name] for name in _JAX},
}


def run(rounds: int = 60) -> list[Row]:
    times = measure({name: looped(step) for name, step in PARTS.items()}, rounds, STEPS)
    return rows_of("parts", times, [(name, FLOOR, None) for name in PARTS])


if __name__ == "__main__":
    sys.exit(running.main({"parts": sys.modules[__name__]}, None, ["parts"]))
