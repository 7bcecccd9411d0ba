"""H24: the native extension is in use where it can be, and without it everything works as well."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support import packaging
from support.subprocesses import PRELUDE, ROOT, run_program

from hostcb._native import library as native
from hostcb._spec.flags import parse_bool

pytestmark = pytest.mark.contract("H24")

needs_library = pytest.mark.skipif(native.library.problem is not None, reason=f"the library: {native.library.problem}")


def test_the_library_is_in_use_wherever_it_can_be_built() -> None:
    """So that no other test is skipped for want of it, unless the environment asks for that."""
    state = native.library.state()
    if not parse_bool(native.VARIABLE, os.environ.get(native.VARIABLE, "1")):
        assert state.endswith(f"{native.VARIABLE} turns it off")
        return
    reason = packaging.native().lacks()
    if reason is not None:
        pytest.skip(f"the native extension: {reason}")
    assert native.library.problem is None, f"{state}; `python {packaging.NATIVE}` builds it"


ONE_TAP = """
seen = []
program = jax.jit(lambda x: hcb.id_tap(lambda a, t: seen.append(float(a)), x) + 1)
for n in range(3): program(float(n))
hcb.barrier_wait()
from hostcb._native.library import library
print(json.dumps([seen, library.problem, [l for l in str(hcb.doctor()).splitlines() if "native extension: " in l]]))
"""


def doctored(text: str = ONE_TAP, **options: Any) -> tuple[str, str]:
    env = {"HOSTCB_NATIVE": "1", **options.pop("env", {})}
    seen, problem, lines = run_program(text, devices=None, env=env, **options).json()
    assert seen == [0, 1, 2]
    (line,) = lines
    return problem, line


@needs_library
def test_it_is_in_use() -> None:
    problem, line = doctored()
    assert problem is None and "in use; taps are queued in C" in line


def test_the_variable_turns_it_off() -> None:
    problem, line = doctored(env={"HOSTCB_NATIVE": "0"})
    assert problem == "HOSTCB_NATIVE turns it off" and "not in use, so taps" in line and line.endswith(f": {problem}")


def test_a_variable_that_is_no_truth_value_is_refused() -> None:
    ended = run_program("", devices=None, env={"HOSTCB_NATIVE": "perhaps"})
    assert ended.returncode == 1
    assert "ValueError: HOSTCB_NATIVE must be a truth value such as 1, 0, true or false, got 'perhaps'." in ended.stderr


def test_without_it_taps_behind_a_failed_call_do_not_run() -> None:
    text = """
    seen, fails = [], []
    def host(value):
        if fails: raise ValueError("no")
        return value + 1
    like = jax.ShapeDtypeStruct((), "float32")
    def step(_, value):
        return hcb.id_tap(lambda a, t: seen.append(float(a)), hcb.call(host, value, result_shape=like))
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 2, step, x))
    for _ in range(3): program(1.0).block_until_ready()
    hcb.barrier_wait()
    before = [*seen]
    seen.clear()
    fails.append(True)
    raised = []
    for _ in range(2):
        for run in (lambda: program(1.0).block_until_ready(), hcb.barrier_wait):
            try: run()
            except Exception as error: raised.append(type(error).__name__)
    from hostcb._native.library import library
    print(json.dumps([library.problem, before, seen, raised]))
    """
    problem, before, seen, raised = run_program(textwrap.dedent(text), devices=None, env={"HOSTCB_NATIVE": "0"}).json()
    assert problem == "HOSTCB_NATIVE turns it off" and before == [2.0, 3.0] * 3
    assert seen == [] and raised == ["JaxRuntimeError", "CallbackException"] * 2


@pytest.fixture
def other_hostcb(tmp_path: Path) -> Path:
    """A copy of hostcb, which a program imports in place of this one."""
    shutil.copytree(ROOT / "hostcb", tmp_path / "hostcb", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "hostcb"


def test_without_the_library(other_hostcb: Path) -> None:
    (other_hostcb / "_native" / "handover.so").unlink(missing_ok=True)
    problem, line = doctored(prelude=f"import sys; sys.path.insert(0, {str(other_hostcb.parent)!r})\n" + PRELUDE)
    assert "it was not built" in problem and problem in line


@needs_library
@pytest.mark.parametrize("what", ["version", "source", "broken"])
def test_a_library_of_another_version_is_refused(other_hostcb: Path, what: str) -> None:
    if what == "version":
        (other_hostcb / "_version.py").write_text('__version__ = "0.2.0"\n')
    elif what == "source":
        source = other_hostcb / "_native" / "handover.h"
        source.write_text(source.read_text() + "\n")
    else:
        (other_hostcb / "_native" / "handover.so").write_bytes(b"no library")
    problem, line = doctored(prelude=f"import sys; sys.path.insert(0, {str(other_hostcb.parent)!r})\n" + PRELUDE)
    assert ("it cannot be loaded" if what == "broken" else "it was built for hostcb") in problem and problem in line


@needs_library
def test_a_runtime_that_refuses_the_library() -> None:
    text = """
def refuses(*args, **options):
    raise RuntimeError("the version of its interface is too old")
jax.ffi.register_ffi_target = refuses
"""
    problem, line = doctored(text + ONE_TAP)
    assert "JAX refuses it: the version of its interface is too old" in problem and problem in line
