"""How the results of a `dlpack_callback` get to a GPU, with the stand-ins of `test_dlpack_callback.py` (D1, B3)."""

from __future__ import annotations

import numpy as np
import pytest
from test_dlpack_callback import CONTEXT, Buffer, Library, Tensor, cupy, torch

from hostcb._api import dlpack

pytestmark = pytest.mark.contract("D1")

__all__ = ["cupy", "torch"]


@pytest.mark.contract("B3")
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_gpu_operands_that_share_their_memory_with_results(name: str, request: pytest.FixtureRequest) -> None:
    library: Library = request.getfixturevalue(name)
    one, other = Buffer(np.zeros(3, np.float32)), Buffer(np.ones(3, np.float32))
    swap = dlpack.Filler(
        lambda x, y: (library.module.from_dlpack(y), library.module.from_dlpack(x)), False, False, shares_memory=True
    )
    swap(CONTEXT, (one, other), one, other)
    assert one.values.tolist() == [1, 1, 1]
    assert other.values.tolist() == [0, 0, 0], "the first result was written before the second was read"


@pytest.mark.parametrize("what", ["shape", "dtype", "numpy"])
def test_gpu_results_that_do_not_match(what: str, torch: Library) -> None:
    result = {"shape": Tensor(np.zeros(2, np.float32), "torch"), "dtype": Tensor(np.zeros(3, np.int32), "torch"),
              "numpy": np.zeros(3, np.float32)}[what]  # fmt: skip
    match = {"shape": r"Expected: \(3,\), Actual: \(2,\)", "dtype": "Expected: float32, Actual: int32",
             "numpy": r"cannot copy on a GPU. Return torch or CuPy arrays, or .* in_place=True"}[what]  # fmt: skip
    out = Buffer(np.ones(3, np.float32))
    with pytest.raises(TypeError, match=match):
        dlpack.Filler(lambda x: result, False, False)(CONTEXT, out, Buffer(np.zeros(3, np.float32)))
    assert out.values.tolist() == [1, 1, 1], "nothing should have been copied"
