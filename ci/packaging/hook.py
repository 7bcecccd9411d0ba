"""The build hook of the library: the native extension where there is a C compiler, and files for `HOSTCB_INSTALL`."""

from __future__ import annotations

import os
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, os.path.dirname(__file__))

import native

# The files for `HOSTCB_INSTALL=1`, which lie beside the package.
STARTUP = ("_hostcb_startup.py", "hostcb_startup.pth")


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        """The headers of XLA are in jaxlib, which is large: no build asks for it without need."""
        return [f"jaxlib>={native.OLDEST_JAXLIB}"] if native.lacks() is None and native.headers() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        files = {f"{self.root}/ci/startup/{name}": name for name in STARTUP}
        build_data["force_include"] |= files
        build_data["force_include_editable"] = files
        try:
            library = native.build()
        except native.NotBuiltError as error:
            self.app.display_warning(f"hostcb is built without its native extension: {error}. It works without it.")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{native.platform_tag()}"
        build_data["force_include"][str(library)] = "hostcb/_native/handover.so"
