"""The build hook: the library in C where a C compiler is, and no copy of the suite in an editable installation."""

from __future__ import annotations

import os
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, os.path.dirname(__file__))

import native


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        """The headers of XLA are in jaxlib, which is large: no build asks for it without need."""
        return [f"jaxlib>={native.OLDEST_JAXLIB}"] if native.lacks() is None and native.headers() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            # Edits would not reach a copy.
            module = f"{self.root}/ci/editable/hostcb_conformance.py"
            build_data["force_include_editable"] = {module: "hostcb_conformance/__init__.py"}
        try:
            library = native.build()
        except native.NotBuiltError as error:
            self.app.display_warning(f"hostcb is built without its library in C: {error}. It works without it.")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{native.platform_tag()}"
        build_data["force_include"][str(library)] = "hostcb/_native/handover.so"
