"""The build hook: the native extension where there is a C compiler, `HOSTCB_INSTALL`, no copy of the suite."""

from __future__ import annotations

import os
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, os.path.dirname(__file__))

import native


def startup(root: str) -> dict[str, str]:
    """Return the files for `HOSTCB_INSTALL=1`, which lie beside the packages, by their place in the wheel."""
    return {f"{root}/ci/startup/{name}": name for name in ("_hostcb_startup.py", "hostcb_startup.pth")}


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        """The headers of XLA are in jaxlib, which is large: no build asks for it without need."""
        return [f"jaxlib>={native.OLDEST_JAXLIB}"] if native.lacks() is None and native.headers() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            # Edits would not reach a copy.
            module = f"{self.root}/ci/editable/hostcb_conformance.py"
            build_data["force_include_editable"] = {module: "hostcb_conformance/__init__.py", **startup(self.root)}
        else:
            build_data["force_include"].update(startup(self.root))
        try:
            library = native.build()
        except native.NotBuiltError as error:
            self.app.display_warning(f"hostcb is built without its native extension: {error}. It works without it.")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{native.platform_tag()}"
        build_data["force_include"][str(library)] = "hostcb/_native/handover.so"
