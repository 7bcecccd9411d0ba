"""Implementations that are not ours, named on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.implementations import ImplementationError, load

pytestmark = pytest.mark.contract("C2")

ROOT = Path(__file__).parents[2]


def conformance(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conformance", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_example(tmp_path: Path) -> None:
    """The module is found in the folder in which the command is called."""
    chosen = ["--implementation", "own_callbacks", "--devices", "2", "-k", "/jit/ or io_callback_sharding/pjit/"]
    ended = conformance(ROOT / "examples", "run", "--results", str(tmp_path), *chosen)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "conformance-cpu.json").read_text())
    callbacks = {cell["id"].split("/")[1] for cell in report["cells"]}
    assert {"pure_callback", "io_callback", "io_callback_ordered"} <= callbacks
    assert not any(name.startswith(("id_tap", "debug", "buffer")) for name in callbacks)
    # What it does not have is reported, and does not pass.
    reasons = {cell["id"]: cell["reason"] for cell in report["ineligible"]}
    assert reasons["own_callbacks/debug_callback/jit/cpu-2dev"] == "own_callbacks has no debug.callback"
    assert reasons["own_callbacks/io_callback_sharding/pjit/cpu-2dev"].endswith("no io_callback(sharding=...)")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module", "no module 'no_such_module' is found"),
        ("examples/own_callbacks.py", "is no module name: put the module's folder on PYTHONPATH"),
        ("conformance.mutants:no_such", "has no no_such"),
        ("conformance.planning.cells", "has no IMPLEMENTATION: see docs/"),
    ],
)
def test_unusable_names(name: str, message: str) -> None:
    with pytest.raises(ImplementationError, match=message):
        load(name)
