"""C60: the mutants of a source: what each operator changes and what it leaves alone, their ids, and their choice."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

from mutation.choice import LEAST, chosen
from mutation.field_operators import FIELD, OPERATORS
from mutation.mutant import Mutant, mutants_in
from mutation.overlay import PACKAGE

pytestmark = pytest.mark.contract("C60")


def mutants(source: str, module: str = "toy.py") -> list[Mutant]:
    return [*mutants_in(textwrap.dedent(source), module)]


def changes(source: str, kind: str) -> list[str]:
    """The changed module, without the lines that are as before, for each mutant of a kind."""
    before = textwrap.dedent(source).splitlines()
    after = [mutant.source.splitlines() for mutant in mutants(source) if mutant.kind == kind]
    return ["\n".join(line.strip() for line in lines if line not in before) for lines in after]


@pytest.mark.parametrize(
    ("kind", "source", "wanted"),
    [
        ("negate condition", "x = a if b else c", ["x = a if (not (b)) else c"]),
        ("negate condition", "x = [a for a in b if c]", ["x = [a for a in b if (not (c))]"]),
        ("comparison", "x = a < 1", ["x = (a <= 1)"]),
        ("comparison", "x = a is not None", ["x = (a is None)"]),
        ("constant", "x = f(3)", ["x = f((3 + 1))"]),
        ("index", "x = a[0], b[-1]", ["x = a[-1], b[-1]"]),
        ("index", "x = f(in_dim, device)", ["x = f((in_dim + 1), device)"]),
        ("true/false", "x = f(copy=True)", ["x = f(copy=False)"]),
        ("and/or", "x = a and b", ["x = ((a) or (b))", "x = ((b))", "x = ((a))"]),
        ("arithmetic", "x = a + b", ["x = ((a) - (b))"]),
        ("arithmetic", "x = not a", ["x = (a)"]),
        ("drop statement", "f(x)", ["pass"]),
        ("drop statement", "self.x = 1", ["pass"]),
        ("drop return", "def f(): return x", ["def f(): return None"]),
        ("drop return", "def f():\n    if a:\n        return", ["pass"]),
        ("swap arguments", "x = f(a, 'ä', c)", ["x = f('ä', a, c)"]),
        ("reverse iteration", "for x in y: z", ["for x in reversed([*(y)]): z"]),
        ("drop copy", "x = a.copy()", ["x = (a)"]),
        ("drop copy", "x = np.array(a, copy=True)", ["x = (a)"]),
        ("drop copy", "np.copyto(a, b)", ["pass"]),
        ("drop copy", "x = list(a)", ["x = (a)"]),
        ("drop wait", "event.wait()", ["pass"]),
        ("drop wait", "jax.block_until_ready(x)", ["pass"]),
        ("drop lock", "with lock:\n    f()\n    g()", ["if True:"]),
        ("drop check", "if a: raise E('text')", ["if (False and (a)): raise E('text')"]),
        ("drop check", "assert a", ["pass"]),
        ("drop branch", "x = a if b else c", ["x = a if (False and (b)) else c", "x = a if (True or (b)) else c"]),
        ("drop effect", "x = f(a, effects=b)", ["x = f(a)"]),
        ("drop effect", "x = effects | {e}", ["x = (effects)", "x = ({e})", "x = effects | set()"]),
        ("drop keyword", "x = f(a, *b, c=d, **e)", ["x = f(a, *b, **e)"]),
        ("drop element", "x = f([a, b])", ["x = f([a,])"]),
        ("drop element", "x = {a: b, **c}", ["x = {a: b}"]),
        ("reverse order", "a.append(b)", ["a.insert(0, b)"]),
        ("reverse order", "x = a.popleft()", ["x = a.pop()"]),
        ("reverse order", "x = sorted(a)", ["x = [*(a)][::-1]"]),
        ("reverse order", "x = reversed(a), b[::-1]", ["x = [*(a)], b[::-1]", "x = reversed(a), (b)"]),
        ("drop cleanup", "try: f()\nfinally: g()", ["finally: pass"]),
        ("drop cleanup", "try: f()\nexcept E: x = y", ["except E: raise"]),
    ],
)
def test_an_operator(kind: str, source: str, wanted: list[str]) -> None:
    assert changes(source, kind) == wanted
    assert all(mutant.can_be_compiled for mutant in mutants(source))


def test_each_operator_has_a_test() -> None:
    (mark,) = (mark for mark in test_an_operator.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {case[0] for case in mark.args[1]} == OPERATORS.keys()


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring, and 1."""',
        "def f(x: list[0] | None = None) -> tuple[1, 2]: ...",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = f(1)",
        "@overload\ndef f(x=1): ...",
        "raise Error(f'{a + 1}', 1 + 2)",
        "@dataclass(frozen=True)\nclass C: ...",
        "class C:\n    def __repr__(self): return f(1)",
        "__all__ = ['a', 'b']",
        "T = TypeVar('T', bound=int)",
        "Values: TypeAlias = 'dict | None'",
        "x = f'{a + 1}'",
        "x = zip(a, strict=b)",
    ],
)
def test_what_decides_nothing_is_left_alone(source: str) -> None:
    assert [mutant.diff for mutant in mutants(source)] == []


def test_what_runs_where_no_type_checker_reads_is_changed() -> None:
    assert [mutant.kind for mutant in mutants("if TYPE_CHECKING: x: int\nelse: f(1)")] == ["drop statement", "constant"]


def test_the_text_of_a_warning_is_left_alone_and_the_warning_is_not() -> None:
    assert [mutant.kind for mutant in mutants("warnings.warn(a + b, Error, 2)")] == ["drop statement", "swap arguments"]


SOURCE = """\
def one(a):
    return a + 1


def two(a):
    a.append(1)
    a.append(1)
"""


def test_an_id_does_not_change_when_other_lines_do() -> None:
    ids = [mutant.id for mutant in mutants(SOURCE)]
    assert len(set(ids)) == len(ids), "equal lines are distinguished"
    moved = [
        mutant.id for mutant in mutants("import x\n\n\n" + SOURCE.replace("def two", "def zero(): ...\n\n\ndef two"))
    ]
    assert moved == ids
    other = {mutant.id for mutant in mutants(SOURCE.replace("a + 1", "a + 2"))}
    assert [name.split(":")[1] for name in ids if name not in other] == ["one"] * 3


def test_a_diff_is_one_line_with_the_place() -> None:
    (diff,) = (mutant.diff for mutant in mutants("x = f(\n    a,\n    b=1,\n)") if mutant.kind == "drop keyword")
    assert diff == "toy.py:1:4 drop keyword: f( a, b=1, ) → f(a)"


def test_a_mutant_knows_the_lines_of_the_change_and_of_its_statement() -> None:
    source = "x = f(\n    a,\n    b < 1,\n)"
    assert [(mutant.lines, mutant.statement) for mutant in mutants(source) if mutant.kind == "comparison"] == [
        ((3,), 1)
    ]


def of_many(sizes: dict[str, int]) -> list[Mutant]:
    line = "x = f(a, list(b), c=d) if e < 1 else g\n"
    return [mutant for module, size in sizes.items() for mutant in mutants(line * size, module)]


def test_the_choice_is_the_same_for_a_seed_and_has_every_module() -> None:
    known = of_many({"large.py": 40, "small.py": 5, "smallest.py": 1})
    few = chosen(known, 30, seed=3)
    assert len(few) == 30 and few == chosen(known, 30, seed=3) != chosen(known, 30, seed=4)
    counts = Counter(mutant.module for mutant in few)
    assert counts["large.py"] > counts["small.py"] > LEAST <= counts["smallest.py"]
    assert len({mutant.kind for mutant in few}) == len({mutant.kind for mutant in known})


def test_an_edit_leaves_the_choice_of_other_lines() -> None:
    first = of_many({"one.py": 10, "two.py": 10})
    before = [mutant.id for mutant in chosen(first, 12, seed=0)]
    after = [mutant.id for mutant in chosen([*mutants("y = g(1, 2)\n", "one.py"), *first], 12, seed=0)]
    assert [name for name in before if name.startswith("two.py")] == [
        name for name in after if name.startswith("two.py")
    ]
    assert len({*before} & {*after}) > 6


def test_hostcb_has_mutants_of_every_kind_in_nearly_every_module() -> None:
    modules = ("_runtime/queue/device_queue.py", "_lowering/views.py", "_primitive/batching.py", "_api/printing.py")
    known = [one for module in modules for one in mutants_in((Path(PACKAGE) / module).read_text(), module)]
    assert FIELD.keys() <= {one.kind for one in known}
    assert len({one.id for one in known}) == len(known)
    assert all(one.can_be_compiled for one in known[::40])
