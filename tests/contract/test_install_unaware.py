"""H27: programs that know nothing of hostcb do the same under `install` as with JAX's own callbacks."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest
from support.subprocesses import run_program

pytestmark = pytest.mark.contract("H27")

MODULES = ("results", "printing", "failures", "transformations", "values")
# What a usual session runs prints and raises; the promises of values and transformations have tests of their own.
USUAL = ("printing", "failures")
PROGRAMS = [
    pytest.param(module, name, marks=[] if module in USUAL else pytest.mark.thorough)
    for module in MODULES
    for name in importlib.import_module(f"programs.unaware.{module}").PROGRAMS
]


@functools.cache
def outcomes(module: str, installed: bool) -> Any:
    """What each program of the module did, in one process for all of them."""
    install = "import hostcb; hostcb.install(); " if installed else ""
    program = f"{install}from programs.unaware.running import main; main({module!r})"
    return run_program(program, devices=1, prelude="", timeout=600.0).json()


@pytest.mark.parametrize(("module", "name"), PROGRAMS)
def test_it_does_as_with_jaxs_own_callbacks(module: str, name: str) -> None:
    expected = outcomes(module, installed=False)[name]
    assert expected
    assert outcomes(module, installed=True)[name] == expected


IMPORTS = """
import sys, jax, jax.numpy as jnp, numpy as np
from jax import debug
from jax.experimental import io_callback
def fails(x):
    raise ValueError("planted")
"""
PROCESSES = {
    "ends_with_prints_on_their_way": "jax.jit(lambda x: debug.print('{}', (x @ x).sum()))(jnp.ones((300, 300)))",
    "exits_with_prints_on_their_way": "jax.jit(lambda x: debug.print('{}', x))(1.0); sys.exit(4)",
    "exits_in_a_debug_callback": "debug.callback(lambda x: sys.exit(3), 1.0); print('not reached')",
    "fails_in_a_debug_callback": "debug.callback(fails, 1.0); print('not reached')",
    "fails_in_jit": "jax.jit(lambda x: jax.pure_callback(fails, x, x))(jnp.ones(2)).block_until_ready()",
    "fails_and_goes_on": "jax.jit(lambda x: io_callback(fails, None, x, ordered=True))(1.0); print('not reached')",
    "prints_between_lines": "print(1); jax.jit(lambda: debug.print('2'))(); jax.effects_barrier(); print(3)",
    "warns_as_errors": "import warnings; warnings.simplefilter('error'); debug.print('{}', np.float64(1))",
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_ends_as_with_jaxs_own_callbacks(process: str) -> None:
    def ended(install: str) -> tuple[int | None, str, list[str]]:
        program = run_program(install + IMPORTS + PROCESSES[process], devices=1, prelude="")
        # In another order: JAX's error has the function's traceback in its text, hostcb's in its cause.
        errors = {line.partition(":")[0] for line in program.stderr.splitlines() if "Error: " in line[:60]}
        return program.returncode, program.stdout, sorted(errors)

    expected = ended("")
    assert expected != (0, "", [])
    assert ended("import hostcb; hostcb.install()") == expected
