"""H27: programs that know nothing of hostcb do the same under `install` as with JAX's own callbacks."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest
from subprocesses import IMPORTING_TESTS, run_program

pytestmark = pytest.mark.contract("H27")

MODULES = ("results", "printing", "failures", "transformations", "values")
PROGRAMS = [
    (module, name) for module in MODULES for name in importlib.import_module(f"programs.unaware.{module}").PROGRAMS
]


@functools.cache
def outcomes(module: str, installed: bool) -> Any:
    """What each program of the module did, in one process for all of them."""
    install = "import hostcb; hostcb.install(); " if installed else ""
    program = f"{install}from programs.unaware.running import main; main({module!r})"
    return run_program(program, devices=1, env=IMPORTING_TESTS, prelude="", timeout=600.0).json()


@pytest.mark.parametrize(("module", "name"), PROGRAMS)
def test_it_does_as_with_jaxs_own_callbacks(module: str, name: str) -> None:
    expected = outcomes(module, installed=False)[name]
    assert expected
    assert outcomes(module, installed=True)[name] == expected
