"""Packages of vendors, as `pip` would leave them in a folder: modules, and the metadata with entry points."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "vendors.md"

PLUGIN = """\
from jax._src import xla_bridge

def initialize():
    xla_bridge.register_backend_factory("acme", xla_bridge.make_cpu_client, priority=-10)
"""
"""A plugin whose devices are a CPU's, and call themselves so: their platform is not its name."""


def installed(
    folder: Path,
    entry_points: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str] = {},
    name: str = "acme-conformance",
) -> Path:
    """The folder, with an installed package of this name."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder


def on_the_page(name: str) -> str:
    """The text of a file in docs/vendors.md: the block that begins with its name."""
    (text,) = re.findall(rf"^```\w+\n(# {re.escape(name)}\n.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return text
