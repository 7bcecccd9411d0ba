"""docs/recipes.md as tests read it, and the recipes themselves."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples" / "recipes"
PAGE = ROOT / "docs" / "recipes.md"

PACKAGES = {
    "progress_bars.py tqdm": "tqdm",
    "progress_bars.py rich": "rich",
    "metrics_tensorboard.py": "tensorboardX",
    "gymnasium_steps.py": "gymnasium",
    "numba_kernel.py": "numba",
    "live_loss.ipynb": "nbclient ipykernel matplotlib",
}
"""The packages that a recipe needs, and that are not everywhere."""

COMMAND = r"`(?:XLA_FLAGS=--xla_force_host_platform_device_count=(\d+) )?python examples/recipes/(\w+\.py)([^`\n]*)`"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


@dataclasses.dataclass(frozen=True)
class Shown:
    """A command of the page, and what it is shown to print."""

    recipe: str
    arguments: tuple[str, ...]
    devices: int
    output: str

    def __str__(self) -> str:
        return " ".join((self.recipe, *self.arguments))


def shown() -> list[Shown]:
    """The commands of the page whose output it shows."""
    found = re.findall(rf"{COMMAND} prints[^`]*:\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [Shown(name, tuple(rest.split()), int(devices or 1), text) for devices, name, rest, text in found]


def sections() -> list[str]:
    """The sections of the page."""
    return PAGE.read_text().split("\n## ")[1:]


def linked(section: str) -> list[Path]:
    """The recipes that a section links."""
    return [RECIPES / name for name in re.findall(r"\]\(\.\./examples/recipes/([\w.]+)\)", section)]


def pieces(section: str) -> list[str]:
    """The lines of code that a section shows; `# …` stands between lines that are not together in the file."""
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return [textwrap.dedent(piece).strip("\n") for block in blocks for piece in block.split("# …\n")]


def has_lines(text: str, piece: str) -> bool:
    """Whether lines are in a file one after the other, however far they are indented."""
    return any(f"\n{textwrap.indent(piece, indent)}\n" in text for indent in ("", " " * 4, " " * 8, " " * 12))


def difference(printed: str, page: str) -> str | None:
    """How the output differs from the page by more than the last digits of numbers with a point, if it does."""
    ours, theirs = printed.splitlines(), page.splitlines()
    if len(ours) != len(theirs):
        return f"{len(ours)} lines, and the page has {len(theirs)}:\n{printed}"
    for our, their in zip(ours, theirs, strict=True):
        if NUMBER.sub("#", our).split() != NUMBER.sub("#", their).split() or not all(
            map(_agree, NUMBER.findall(our), NUMBER.findall(their))
        ):
            return f"{our!r}, and the page has {their!r}"
    return None


def _agree(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    last_digit = 10.0 ** -len(theirs.partition(".")[2])
    return "." in theirs and math.isclose(float(ours), float(theirs), rel_tol=1e-3, abs_tol=1.5 * last_digit)


PRINTING = """
import contextlib, io, json, runpy, sys
sys.argv = sys.argv[1:]
printed = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
with contextlib.redirect_stdout(printed):
    runpy.run_path(sys.argv[0], run_name="__main__")
printed.flush()
print(json.dumps(printed.buffer.getvalue().decode()))
"""
"""A program that runs another one, and prints its output as JSON, carriage returns included."""


def require(recipe: str) -> None:
    """Skip the test where a package of the recipe is not installed; `HOSTCB_RECIPES=all` fails in place of that."""
    needed = PACKAGES.get(recipe, "").split()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}"
        (pytest.fail if os.environ.get("HOSTCB_RECIPES") == "all" else pytest.skip)(reason)


def load(name: str, *arguments: str) -> Any:
    """Import a recipe, or skip the test."""
    require(" ".join((f"{name}.py", *arguments)))
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def screen(written: str) -> str:
    """What a terminal shows after `\\r`, `\\n` and "cursor up", in any order."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[A|\r|\n|[^\r\n\x1b]+", written):
        if token == "\x1b[A":
            row -= 1
        elif token == "\r":
            column = 0
        elif token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + token + line[column + len(token) :]
            column += len(token)
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())
