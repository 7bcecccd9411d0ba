"""The arrays that callbacks get: right when they come, and still right when their memory could have been used again."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .codes import SMALL

ONE_IN = 8
"""One of so many arrays is kept."""

MOST_KEPT = 24


class Keeping:
    """Checks arrays, and keeps a few of them for a while to check them again."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._kept: deque[tuple[Any, int, str, int, str]] = deque()
        self._numbers = itertools.count(1)

    def check(self, data: Any, code: int, dtype: str, size: int, owner: object) -> None:
        if data.dtype.name != dtype or data.size != size:
            self._note("wrong operand", f"{owner}: got {data.dtype.name}[{data.size}], expected {dtype}[{size}]")
        elif not _right(data, code):
            self._note(
                "wrong operand", f"{owner}: got {_of(data)} beside the code {code}, expected {_value(code)} alone"
            )
        elif not next(self._numbers) % ONE_IN:
            self._kept.append((data, code, dtype, size, str(owner)))
            if len(self._kept) > MOST_KEPT:
                self._check_again(*self._kept.popleft())

    def check_all(self) -> None:
        """Check all kept arrays again, and forget them."""
        while self._kept:
            self._check_again(*self._kept.popleft())

    def _check_again(self, data: Any, code: int, dtype: str, size: int, owner: str) -> None:
        if not _right(data, code):
            self._note(
                "torn operand", f"{owner}: an array that a callback kept was {_value(code)}, and is now {_of(data)}"
            )


def _value(code: int) -> int:
    return code & SMALL


def _right(data: Any, code: int) -> bool:
    wanted = _value(code) & 1 if data.dtype == np.bool_ else _value(code)
    return bool((data == np.asarray(wanted).astype(data.dtype)).all())


def _of(data: Any) -> str:
    return f"{np.unique(data.astype(np.float32) if data.dtype.kind == 'V' else data)[:4].tolist()}"
