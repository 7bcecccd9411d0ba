"""What the documentation shows is what happens."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from support import pages
from support.subprocesses import run_program

from hostcb import debug
from hostcb._api import buffers, dlpack, doctor, external, host_callback, jax_arrays, stats
from hostcb._installation import switch
from hostcb._runtime.executions import barrier

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
KERNELS = PROJECT / "docs" / "callbacks" / "buffer_callback.md"
ELSEWHERE = {
    "docs/coming-from.md": "programs before and after; tests/contract/test_coming_from.py compares what they print",
    "docs/recipes.md": "parts of the files in examples/recipes; tests/contract/test_recipes.py runs these",
    "docs/extending.md": "parts of a package that is not here",
    "docs/vendors.md": "files of a package that is not here; test_vendors.py has such a package",
}
DOCUMENTED = [host_callback, barrier, external, debug, buffers, dlpack, jax_arrays, doctor, switch, stats]


@pytest.mark.parametrize("module", DOCUMENTED, ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: ModuleType) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0, f"{module.__name__} has no examples"
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples differ, see the output"


def pages_with_examples() -> list[Path]:
    return [page for page in pages.pages() if pages.examples(page) and not elsewhere(page)]


def elsewhere(page: Path) -> str | None:
    """Why the blocks of a page do not run here."""
    return next((why for pattern, why in ELSEWHERE.items() if page.match(pattern)), None)


def differences(page: Path, examples: list[pages.Example], outputs: list[str]) -> list[str]:
    """The blocks whose output is not the one that the page shows; `...` stands there for any text."""
    checker = doctest.OutputChecker()
    return [
        f"{pages.name_of(page)}, line {example.line}: the page shows\n{example.output}\nand the block printed\n{output}"
        for example, output in zip(examples, outputs, strict=True)
        if example.output is not None and not checker.check_output(example.output, output, doctest.ELLIPSIS)
    ]


@pytest.mark.parametrize("page", pages_with_examples(), ids=pages.name_of)
def test_the_blocks_of_a_page(page: Path, tmp_path: Path) -> None:
    """All of them in one process, and in the order of the page."""
    examples = pages.examples(page)
    blocks = json.dumps([(example.line, example.source) for example in examples])
    ended = run_program("page.py", str(tmp_path), pages.name_of(page), blocks, devices=None)
    wrong = differences(page, examples, ended.json())
    assert not wrong, "\n".join(wrong)


def test_a_block_with_another_output_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n\n```python\nprint('a', 3)\n```\n```\n... 3\n```\n")
    examples = [pages.Example(2, "print(1)\n", "2\n"), pages.Example(10, "print('a', 3)\n", "... 3\n")]
    assert pages.examples(page) == examples
    assert len(differences(README, examples, ["1\n", "a 3\n"])) == 1


def recipe(title: str) -> str:
    """The code under a title of the page on kernels, which not every machine can run."""
    match = re.search(rf"^## {title}\n.*?```py\n(.*?)```", KERNELS.read_text(), re.DOTALL | re.MULTILINE)
    assert match, f"{KERNELS.name} has a recipe called {title}"
    return match.group(1)


@pytest.mark.contract("D2")
def test_the_recipes_for_torch() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    source = f"""
import hostcb as hcb, jax, jax.numpy as jnp, numpy as np
{recipe("torch")}
x = jnp.array([-1.0, 0.5, 2.0])
np.testing.assert_allclose(jax.jit(softmax)(x), jax.nn.softmax(x), rtol=1e-6)
np.testing.assert_array_equal(relu(x), [0, 0.5, 2])
np.testing.assert_array_equal(jax.vmap(jax.grad(relu))(x), [0, 1, 1])
print("equal")
"""
    ended = run_program(source, devices=None, prelude="").check()
    assert ended.lines[-1] == "equal", str(ended)
