"""Tests of combinations of which each two values occur together, where more would try the same thing again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from conformance.planning.covering import Space, cover
from support import sessions


def pairwise(**axes: Iterable[str]) -> Any:
    """As `pytest.mark.parametrize` for each axis, but only so many rows that every pair of values is in one of them.

    A thorough session has the whole product.
    """
    values = {name: tuple(of_axis) for name, of_axis in axes.items()}
    if sessions.THOROUGH:
        return lambda function: _product(function, values)
    return pytest.mark.parametrize(tuple(values), cover(Space(values), [], seed=0).rows)


def in_turns(names: tuple[str, str], first: Iterable[Any], second: Iterable[Any], times: int = 1) -> Any:
    """As `pytest.mark.parametrize` for two axes, but each value of the first meets only `times` of the second, in turn.

    A thorough session has the whole product.
    """
    every, others = list(first), list(second)
    times = len(others) if sessions.THOROUGH else times
    rows = [
        (one, others[(times * place + turn) % len(others)]) for place, one in enumerate(every) for turn in range(times)
    ]
    return pytest.mark.parametrize(names, [pytest.param(*row, id="-".join(map(_name, row))) for row in rows])


def _name(value: Any) -> str:
    return value if isinstance(value, str) else str(getattr(value, "name", None) or getattr(value, "__name__", value))


def _product(function: Any, values: dict[str, tuple[str, ...]]) -> Any:
    for name, of_axis in values.items():
        function = pytest.mark.parametrize(name, of_axis)(function)
    return function
