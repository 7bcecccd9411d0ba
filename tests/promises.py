#!/usr/bin/env python3
"""Which tests, cells and mutants hold each promise of docs/contract.md; `nox -s docs` writes docs/promises.md by it.

Tests cite promises with `pytest.mark.contract`, cells by what their callback, transforms or case say. A mutant counts
for the promises of the cells that must catch it. Tests are read and not imported, and are counted as functions: so the
page is the same with every release of JAX.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import functools
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

TESTS = Path(__file__).parent
CONTRACT = TESTS.parent / "docs" / "contract.md"
PAGE = TESTS.parent / "docs" / "promises.md"

HEAD = """\
# The contract, with what holds each promise

Written by `python tests/promises.py`. Promises are those of [contract.md](contract.md), of which this page has the
first sentences. Tests are counted as functions, below `tests/`. Cells are those of the CPU for `hostcb`;
`python -m conformance list` prints their ids, each with its promises. `id_tap/* 12` stands for twelve cells whose ids
begin with `hostcb/id_tap/`, and `*/case.raises.* 3` for three cells of a case. A mutant
stands where a cell that must catch it cites the promise.

| promise | tests | cells | mutants |
| --- | --- | --- | --- |
"""


def numbered() -> list[str]:
    """The numbers of the promises, in the order of the contract."""
    return re.findall(r"^\| ([A-Z]\d+) \|", CONTRACT.read_text(encoding="utf-8"), re.MULTILINE)


def words() -> dict[str, str]:
    """How each promise begins, by its number. Its links lead to other pages of `docs/`, where this page is, too."""
    promises = re.findall(r"^\| ([A-Z]\d+) \| (.*) \|$", CONTRACT.read_text(encoding="utf-8"), re.MULTILINE)
    return {number: first_sentence(promise) for number, promise in promises}


def first_sentence(text: str) -> str:
    """The text up to the end of its first sentence that is not inside of code, a link or parentheses."""
    for end in re.finditer(r"[.:;](?= )", text):
        begin = text[: end.start()]
        if begin.count("`") % 2 == 0 and all(begin.count(left) == begin.count(right) for left, right in ("()", "[]")):
            return f"{begin}."
    return text


def complaint(numbers: Iterable[str]) -> str | None:
    """What is wrong with the arguments of a marker, if anything."""
    numbers = list(numbers)
    if not numbers:
        return 'pytest.mark.contract needs the number of a promise, such as contract("H5")'
    unknown = [number for number in numbers if number not in numbered()]
    return f"docs/contract.md has no promise {', '.join(map(str, unknown))}" if unknown else None


def _cited(decorators: Iterable[ast.expr]) -> Iterator[str]:
    """The arguments of each `pytest.mark.contract(...)` among decorators."""
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.contract":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def _of_module(tree: ast.Module) -> Iterator[str]:
    """What `pytestmark` says of all tests of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from _cited(node.value.elts if isinstance(node.value, ast.List) else [node.value])


def tests() -> dict[str, Counter[str]]:
    """For each promise, how many tests of which file cite it."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_all = set(_of_module(tree))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in of_all | set(_cited(node.decorator_list)):
                    found.setdefault(number, Counter())[path.relative_to(TESTS).as_posix()] += 1
    return found


@functools.cache
def cells() -> dict[str, tuple[str, ...]]:
    """The promises that each cell of hostcb cites, by `callback/program/topology`."""
    from conformance.cli.commands import main

    with contextlib.redirect_stdout(io.StringIO()) as listing:
        code = main(["list", "--implementation", "hostcb"])
    assert code == 0, listing.getvalue()
    rows = (line.rsplit(" ", 1) for line in listing.getvalue().splitlines())
    return {cell.partition("/")[2]: tuple(cited.split(",")) for cell, cited in rows}


def mutants(cells: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """For each promise, the mutants that a cell which cites it must catch."""
    from conformance.mutants import MUTANTS

    found: dict[str, list[str]] = {}
    for mutant in MUTANTS:
        catching = [cell for cell in cells if any(fnmatch.fnmatchcase(cell, glob) for glob in mutant.cells)]
        for number in {number for cell in catching for number in cells[cell]}:
            found.setdefault(number, []).append(mutant.name)
    return found


def _counted(patterns: Iterable[str]) -> str:
    """Patterns of ids, each with the number of cells that it stands for."""
    return ", ".join(f"`{pattern}` {count}" for pattern, count in sorted(Counter(patterns).items())) or "none"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names))) or "none"


def _case_of(program: str) -> str | None:
    """The case of a cell with any layout, or its entry of the table; nothing for a composition of transforms."""
    kind, _, rest = program.partition(".")
    if kind not in ("case", "table"):
        return None
    return f"{kind}.{rest.partition('.')[0]}{'.*' if kind == 'case' else ''}"


def page() -> str:
    of_tests, of_cells = tests(), cells()
    of_mutants = mutants(of_cells)
    promised = words()
    table, sections = [], []
    for number in numbered():
        files = of_tests.get(number, Counter())
        citing = [cell.split("/") for cell, cited in of_cells.items() if number in cited]
        breaking = of_mutants.get(number, [])
        table.append(f"| [{number}](#{number.lower()}) | {files.total()} | {len(citing)} | {len(breaking)} |\n")
        cases = [case for _, program, _ in citing if (case := _case_of(program))]
        composed = [callback for callback, program, _ in citing if not _case_of(program)]
        sections.append(
            f"\n## {number}\n\n{promised[number]}\n\n"
            f"- tests: {', '.join(f'`{file}` {count}' for file, count in sorted(files.items())) or 'none'}\n"
            f"- cells of composed programs: {_counted(f'{callback}/*' for callback in composed)}\n"
            f"- cells of cases and of the table: {_counted(f'*/{case}' for case in cases)}\n"
            f"- mutants: {_names(breaking)}\n"
        )
    return HEAD + "".join(table + sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)
