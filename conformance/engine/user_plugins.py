"""The pytest plugins that a user names for a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..spec.errors import CommandError

CHECK_DEADLINE = 60.0

CONFIGURATION = Path(__file__).with_name("any_name.ini")


class PluginError(CommandError):
    """A plugin that pytest cannot load."""


def require_plugins(names: Sequence[str]) -> None:
    """Raise `PluginError` for the first plugin that pytest cannot load: before the plan, which takes seconds."""
    for name in names:
        if name.startswith("no:"):
            raise PluginError(f"-p {name} turns a plugin off, and a run has only those that it needs and those of -p")
        # Another process: an import here would come before pytest's own, which rewrites assertions.
        options = ("-c", str(CONFIGURATION), "-p", "no:cacheprovider", "-p", name, "--markers")
        command = [sys.executable, "-m", "pytest", *options]
        environment = {
            key: value for key, value in os.environ.items() if key not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
        }
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        try:
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=CHECK_DEADLINE, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PluginError(f"-p {name}: pytest did not load this plugin in {CHECK_DEADLINE:.0f} s") from error
        if ended.returncode != 0:
            said = [line.removeprefix("ERROR:").strip() for line in ended.stderr.splitlines() if line.strip()]
            raise PluginError(
                f"-p {name}: pytest cannot load this plugin: expected a module on PYTHONPATH, or the name of an"
                f" installed plugin: {said[-1] if said else 'it says nothing'}"
            )
