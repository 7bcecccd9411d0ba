"""What the documentation shows is what happens."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from types import ModuleType

import pytest
from subprocesses import run_program

from hostcb import debug
from hostcb._api import buffers, dlpack, doctor, external, host_callback, jax_arrays
from hostcb._installation import switch
from hostcb._runtime import barrier

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
KERNELS = PROJECT / "docs" / "kernels.md"
DOCUMENTED = [host_callback, barrier, external, debug, buffers, dlpack, jax_arrays, doctor, switch]


@pytest.mark.parametrize("module", DOCUMENTED, ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0, f"{module.__name__} has no examples"
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples differ, see the output"


def test_the_example_of_the_readme() -> None:
    text = README.read_text()
    match = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL)
    assert match, "the README has an example with its output"
    source, output = match.groups()
    ended = run_program(source, devices=None, prelude="").check()
    assert ended.stdout == output, str(ended)


def recipe(title: str) -> str:
    """The code under a title of the page on kernels."""
    match = re.search(rf"^## {title}.*?```python\n(.*?)```", KERNELS.read_text(), re.DOTALL | re.MULTILINE)
    assert match, f"{KERNELS.name} has a recipe called {title}"
    return match.group(1)


@pytest.mark.contract("D2")
def test_the_recipes_for_numpy() -> None:
    source = recipe("NumPy") + recipe("In place") + "print(bump(jnp.arange(3.0)))"
    ended = run_program(source, devices=None, prelude="").check()
    assert ended.lines == ["[0. 1. 3. 6.]", "[1. 2. 3.]"], str(ended)


@pytest.mark.contract("D2")
def test_the_recipes_for_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    source = recipe("NumPy") + recipe("torch, on CPU and GPU") + recipe("Derivatives")
    checks = """
import numpy as np
x = jnp.array([-1.0, 0.5, 2.0])
np.testing.assert_allclose(jax.jit(softmax)(x), jax.nn.softmax(x), rtol=1e-6)
np.testing.assert_array_equal(relu(x), [0, 0.5, 2])
np.testing.assert_array_equal(jax.vmap(jax.grad(relu))(x), [0, 1, 1])
print("equal")
"""
    ended = run_program(source + checks, devices=None, prelude="").check()
    assert ended.lines[-1] == "equal", str(ended)
