"""The first line of an error names the function, or the user's line that calls one of another package (H32)."""

from __future__ import annotations

import functools
import json
import math
import os
import re
from typing import Any

import numpy as np
import pytest
from support.first_lines import barrier, ended
from support.helpers import STAGES

import hostcb as hcb
from hostcb._spec.naming import place_of_call

pytestmark = pytest.mark.contract("H32")


def save(*operands: Any, **_: Any) -> Any:
    raise OSError("disk full\nand more")


OWN_LINE = re.compile(rf"{re.escape(__file__)}:(\d+)\), on cpu:0")


@STAGES
@pytest.mark.parametrize("function", [np.linalg.inv, functools.partial(np.linalg.inv), math.sin, np.invert, json.loads])
def test_a_function_of_another_package_is_named_with_the_line_that_calls_back(function: Any, stage: Any) -> None:
    operand = np.zeros((2, 2), np.float32)

    def program(x: Any) -> Any:
        x = hcb.call(lambda x: x, x, result_shape=x)
        return hcb.call(function, x, result_shape=x)

    first = str(ended(lambda: stage(program)(operand))).splitlines()[0]
    found = OWN_LINE.search(first)
    assert found is not None and int(found[1]) == program.__code__.co_firstlineno + 2, first
    assert str(barrier()).splitlines()[0] == first


@STAGES
def test_of_two_calls_of_one_function_the_error_names_the_one_that_failed(stage: Any) -> None:
    def program(x: Any) -> Any:
        inverse = hcb.call(np.linalg.inv, x, result_shape=x)
        return hcb.call(np.linalg.inv, inverse * 0, result_shape=x)

    first = str(ended(lambda: stage(program)(np.eye(2, dtype=np.float32)))).splitlines()[0]
    assert f"{__file__}:{program.__code__.co_firstlineno + 2})" in first
    barrier()


def test_a_library_that_calls_back_is_named_by_its_own_function() -> None:
    """Its own function says more than the line of the user that has called the library."""
    installed = f"{os.path.dirname(np.__file__)}{os.sep}made_up.py"
    assert place_of_call(np.linalg.inv, lambda: [(installed, 3), (__file__, 4)]) == ""
    assert place_of_call(np.linalg.inv, lambda: [(__file__, 4), (installed, 3)]) == f"{__file__}:4"
    assert place_of_call(math.sin, lambda: [(installed, 3), (__file__, 4)]) == f"{__file__}:4", "it has no line"
    assert place_of_call(math.sin, lambda: [(installed, 3)]) == ""
    assert place_of_call(save, lambda: [(__file__, 4)]) == "", "the user's own function"
