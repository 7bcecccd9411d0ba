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
from hostcb._runtime import barrier

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
KERNELS = PROJECT / "docs" / "kernels.md"
COMING_FROM = [PROJECT / "docs" / f"coming-from-{origin}.md" for origin in ("host-callback", "jax-callbacks")]
DOCUMENTED = [host_callback, barrier, external, debug, buffers, dlpack, jax_arrays, doctor]


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


# JAX has no host_callback any more, so the old programs of its page find hostcb there.
STAND_IN = """
import sys
import hostcb
sys.modules["jax.experimental.host_callback"] = hostcb
"""


def blocks_of(page: Path) -> list[tuple[str, list[str], str]]:
    """The programs of a page, by the blocks of output behind them: each program of a group has that output."""
    groups: list[tuple[str, list[str], str]] = []
    programs: list[str] = []
    title = ""
    for heading, language, block in re.findall(r"^## (.*?)$|^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if heading:
            title = heading
        elif language == "python":
            programs.append(block)
        else:
            groups.append((f"{title} {len(groups)}", programs, block))
            programs = []
    assert not programs, f"{page.name}: the last program has no output behind it"
    return groups


GROUPS = [pytest.param(*group, id=f"{page.stem}: {group[0]}") for page in COMING_FROM for group in blocks_of(page)]


@pytest.mark.contract("X2", "X3", "X4", "H1", "H2", "H3", "H13", "H16")
@pytest.mark.parametrize(("title", "programs", "output"), GROUPS)
def test_the_programs_of_those_who_come_from_elsewhere(title: str, programs: list[str], output: str) -> None:
    """Of two programs side by side, the old one has the same output as the new one."""
    assert programs, f"{title}: an output without a program"
    for program in programs:
        stands_in = STAND_IN if "jax.experimental.host_callback" in program or "import host_callback" in program else ""
        ended = run_program(program, devices=2, prelude=stands_in).check()
        assert ended.stdout == output, str(ended)


@pytest.mark.parametrize("page", COMING_FROM, ids=lambda page: page.stem)
def test_pages_for_those_who_come_from_elsewhere_begin_with_the_quickest_way(page: Path) -> None:
    text = page.read_text()
    assert "[Without touching the program](#without-touching-the-program)" in text[:1000] and "hostcb.install()" in text
    assert len(blocks_of(page)) >= 4


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
