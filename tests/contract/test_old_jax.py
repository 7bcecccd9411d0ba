"""H21: a JAX that is too old, as `import hostcb` finds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hostcb as hcb

pytestmark = pytest.mark.contract("H21")

ROOT = Path(hcb.__file__).parents[1]


@pytest.mark.parametrize("version", ["0.4.31", "0.6.2", "0.10.1"])
def test_a_jax_that_is_too_old_is_refused_in_one_sentence(version: str, tmp_path: Path) -> None:
    """Without the check the first name that is missing there would end the import."""
    (tmp_path / "jax").mkdir()
    numbers = tuple(map(int, version.split(".")))
    (tmp_path / "jax" / "__init__.py").write_text(f"__version__, __version_info__ = {version!r}, {numbers}")
    ended = subprocess.run(
        [sys.executable, "-c", "import hostcb"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        f"ImportError: hostcb needs JAX 0.10.2 or newer, and JAX {version} is installed:"
        " pip install --upgrade 'jax>=0.10.2'"
    )
