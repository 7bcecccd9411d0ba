"""C60: the mutants of the native extension: what is changed, what is left alone, and the library that a trial loads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from mutation.c import building
from mutation.c.mutants import FOLDER, mutants_in, mutants_of
from mutation.c.operators import OPERATORS
from mutation.c.source import blanked, functions
from mutation.coverage import Coverage, Reached
from mutation.field_operators import OPERATORS as OF_PYTHON
from mutation.mutant import Mutant
from mutation.overlay import PACKAGE, environment_with, make_overlay

pytestmark = pytest.mark.contract("C60")

needs_compiler = pytest.mark.skipif(bool(building.lacking()), reason=f"the native extension: {building.lacking()}")


def mutants(body: str) -> list[Mutant]:
    """Those of a function with this body."""
    return [*mutants_in(f"static int f(int a, char* b) {{\n  {body}\n}}\n", "_native/toy.c", {})]


def changes(body: str, kind: str) -> list[str]:
    return [mutant.source.splitlines()[1].strip() for mutant in mutants(body) if mutant.kind == kind]


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        ("negate condition", "if (a) g();", ["if (!(a)) g();"]),
        ("negate condition", "while (f(a)) g();", ["while (!(f(a))) g();"]),
        ("drop check", "if (a || c(b)) return 0;", ["if (0 && (a || c(b))) return 0;"]),
        ("drop branch", "if (a) g();", ["if (0 && (a)) g();", "if (1 || (a)) g();"]),
        ("drop branch", "while (a) g();", ["while (0 && (a)) g();"]),
        ("comparison", "int c = a < 1;", ["int c = a <= 1;"]),
        ("comparison", "g(a == 1, b->c);", ["g(a != 1, b->c);"]),
        ("arithmetic", "c = a + -1;", ["c = a - -1;"]),
        ("arithmetic", "c += a % 2;", ["c -= a % 2;", "c += a / 2;"]),
        ("arithmetic", "char* c = &b[a * 2];", ["char* c = &b[a / 2];"]),
        ("and/or", "g(a && b);", ["g(a || b);"]),
        ("constant", "g(a, 3, 0x1, b1);", ["g(a, (3 + 1), 0x1, b1);"]),
        ("index", "g(*b++, *b);", ["g(*b, *b);"]),
        ("drop element", "c = a, d(b, a);", ["(void)0, d(b, a);", "c = a, (void)0;"]),
        ("drop statement", "c->d = a;", ["(void)0;"]),
        ("drop statement", "if (a) g(b); else c = 1;", ["if (a) (void)0; else c = 1;", "if (a) g(b); else (void)0;"]),
        ("drop statement", "for (int i = 0; i < a; ++i) g(i);", ["for (int i = 0; i < a; ++i) (void)0;"]),
        ("drop copy", "memcpy(b, c, a);", ["(void)0;"]),
        ("drop lock", "pthread_mutex_lock(&c->mutex);", ["(void)0;"]),
        ("drop wait", "pthread_cond_wait(&c->woken, &c->mutex);", ["(void)0;"]),
    ],
)
def test_the_changes_of_an_operator(kind: str, body: str, wanted: list[str]) -> None:
    assert [change.replace("  ", " ") for change in changes(body, kind)] == wanted


@pytest.mark.parametrize(
    "body",
    [
        "int c;",
        "const char* c = b;",
        "return b;",
        "break;",
        "Ring** next;",
        "/* a < 1, g(b); */",
        'return "a < 1; g(b)";',
        "// g(b);",
    ],
)
def test_declarations_comments_and_texts_are_left_alone(body: str) -> None:
    assert mutants(body) == []


def test_macros_and_what_is_outside_of_functions_are_left_alone() -> None:
    source = textwrap.dedent(
        """\
        #include <a.h>
        #define MOST (1u << 20) + \\
          f(2)
        static int count = 1;
        typedef struct { int a; } One;
        static const int table[2] = {1, 2};
        """
    )
    assert [*mutants_in(source, "_native/toy.c", {})] == []
    assert len(blanked(source)) == len(source), "the places would be others"


def test_functions_are_found_by_their_heads() -> None:
    second = 'EXPORTED Ring* two(int c,\n  void** d) {\n  if (c) {\n  }\n  return "}";\n}\n'
    source = "static int one(int a) { return a; }\n\n" + second
    found = [*functions(blanked(source))]
    assert [one.name for one in found] == ["one", "two"]
    assert source[found[1].end :] == "}\n"


def test_an_id_stays_while_its_line_does() -> None:
    first = "static void f(int a) {\n  g(a);\n  a = 1;\n  g(a);\n}\n"
    ids = [mutant.id for mutant in mutants_in(first, "_native/toy.c", {})]
    later = [mutant.id for mutant in mutants_in("/* new */\n\n" + first, "_native/toy.c", {})]
    assert ids == later and len(set(ids)) == len(ids)
    assert [each for each in ids if each.endswith(":2")], "two equal lines are distinguished"


def test_the_library_has_mutants_of_every_kind_each_with_callers() -> None:
    known = mutants_of(PACKAGE)
    assert Counter(mutant.kind for mutant in known).keys() == OPERATORS.keys() <= OF_PYTHON.keys()
    files = {path.name for path in (PACKAGE / FOLDER).glob("*.c")}
    assert {Path(mutant.module).name for mutant in known} == files
    assert all(mutant.callers for mutant in known)
    assert len({mutant.id for mutant in known}) == len(known)


def test_a_cell_reaches_a_function_where_it_reaches_a_call_of_it() -> None:
    (mutant, *_) = mutants_in(
        "EXPORTED void hostcb_g(int a) { g(a); }", "_native/toy.c", {"hostcb_g": frozenset({("rings.py", 7)})}
    )
    cells = {name: Reached(name, 1.0, {"rings.py": frozenset({line})}) for name, line in (("one", 6), ("two", 7))}
    assert [one.id for one in Coverage(cells).reaching(mutant)] == ["two"]


@needs_compiler
def test_what_is_no_c_any_more_is_known() -> None:
    (negated,) = (one for one in mutants("if (a) b = 0;\n  return a;") if one.kind == "negate condition")
    assert negated.can_be_compiled
    (divided,) = (one for one in mutants("return *(b + a);") if one.kind == "arithmetic")
    assert divided.can_be_compiled
    (product,) = (one for one in mutants("return b - b + 1 & 1;") if one.after == "|")
    assert product.can_be_compiled
    assert not building.compiles("int f(void) { return b; }", "_native/toy.c")


LOADED = """
import jax, hostcb
from hostcb._native.library import LIBRARY, library
seen = []
program = jax.jit(lambda x: hostcb.id_tap(lambda a, t: seen.append(float(a)), x) + 1)
for number in range(3):
    program(float(number))
hostcb.barrier_wait()
print(library.problem, LIBRARY.is_symlink(), seen)
"""


@needs_compiler
def test_a_trial_loads_the_changed_library(tmp_path: Path) -> None:
    """The first value goes through Python, and the others by the ring, where each is twice its predecessor's."""
    module = f"{FOLDER}/handover.c"
    source = (PACKAGE / module).read_text()
    copied = "memcpy(to, data_of(frame, i), size);"
    assert source.count(copied) == 1
    changed = source.replace(copied, f"{copied} *(float*)to *= 2;")
    overlay = make_overlay(tmp_path, module, changed)
    building.build_changed(overlay)
    ended = subprocess.run(
        [sys.executable, "-c", LOADED],
        env=environment_with(overlay, {**os.environ, "JAX_PLATFORMS": "cpu"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout == "None False [0.0, 2.0, 4.0]\n", ended.stderr
