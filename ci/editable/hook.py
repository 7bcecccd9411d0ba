"""A build hook: an editable installation gets no copy of the suite, since edits would not reach the copy."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class EditableHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            module = f"{self.root}/ci/editable/hostcb_conformance.py"
            build_data["force_include_editable"] = {module: "hostcb_conformance/__init__.py"}
