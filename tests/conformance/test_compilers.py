"""Defects that lowering may hide and a vendor's compiler shows: `nox -s compiled` installs the compilers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.reports.results import load_results

pytestmark = pytest.mark.contract("C30")

ROOT = Path(__file__).parents[2]

WITHOUT_SHARDING = """\
from types import SimpleNamespace

from conformance.implementations.hostcb import IMPLEMENTATION
from hostcb._lowering import transports

plain = transports.mlir


def emit(*arguments, sharding, **options):
    return plain.emit_python_callback(*arguments, sharding=None, **options)


transports.mlir = SimpleNamespace(**{**vars(plain), "emit_python_callback": emit})
"""

ANOTHER_TARGET = """\
from conformance.implementations.hostcb import IMPLEMENTATION
from hostcb._lowering import transports

plain = transports.custom_call


def custom_call(context, target, *arguments, **options):
    return plain(context, target.replace("callback", "callbak"), *arguments, **options)


transports.custom_call = custom_call
"""

DEFECTS = {
    "tpu": ("libtpu", WITHOUT_SHARDING, "id_tap/pjit/tpu-4dev", "Side-effect HLO must have sharding"),
    "cuda": ("jax_plugins.xla_cuda13", ANOTHER_TARGET, "call/jit/cuda-1dev", "xla_ffi_python_gpu_callbak"),
}


@pytest.mark.parametrize(("compiler", "source", "cell", "words"), DEFECTS.values(), ids=DEFECTS)
def test_a_defect_that_the_compiler_shows(tmp_path: Path, compiler: str, source: str, cell: str, words: str) -> None:
    """The same cell passes with hostcb, so that it is the defect that fails."""
    if _is_absent(compiler):
        pytest.skip(f"the compiler {compiler} is not installed; `nox -s compiled` installs it")
    (tmp_path / "planted_defect.py").write_text(source)
    platform = cell.rpartition("/")[2].partition("-")[0]
    command = [sys.executable, "-m", "conformance", "run", "--platform", platform, "--depth", "compile"]
    for implementation in ("hostcb", "planted_defect"):
        command += ["--cell", f"{implementation}/{cell}@compile"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "XLA_FLAGS": "", "JAX_PLATFORMS": ""}
    results = tmp_path / "results"
    ended = subprocess.run(
        [*command, "--results", str(results)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    (found,) = load_results(results)
    hostcb, planted = sorted(found.cells, key=lambda cell: cell.id)
    assert (hostcb.id.partition("/")[0], hostcb.verdict) == ("hostcb", "pass"), hostcb.witness
    assert planted.verdict in ("fail", "unsupported")
    assert words in planted.witness


def _is_absent(module: str) -> bool:
    package = module.rpartition(".")[0]
    return (bool(package) and importlib.util.find_spec(package) is None) or importlib.util.find_spec(module) is None
