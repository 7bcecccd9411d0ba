"""Wheels of releases that are no JAX, in a folder: uv or pip makes environments of them without an index."""

from __future__ import annotations

import zipfile
from pathlib import Path

VERSIONS = ("0.5.3", "0.6.0", "0.6.1", "0.6.2", "0.7.0")


def make_wheels(folder: Path) -> Path:
    folder.mkdir()
    for version in VERSIONS:
        # As JAX does, it needs the jaxlib of its version.
        _wheel(folder, "jax", version, f"Requires-Dist: jaxlib=={version}\n")
        _wheel(folder, "jaxlib", version)
    # A release of which a part is missing.
    _wheel(folder, "jax", "0.7.1", "Requires-Dist: jaxlib==0.7.1\n")
    # One for a Python that is not there.
    _wheel(folder, "jax", "0.7.2", "Requires-Python: >=3.99\n")
    _wheel(folder, "numpy", "2.0.0")
    _wheel(folder, "absl_py", "2.0.0")
    return folder


def _wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
