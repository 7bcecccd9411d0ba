"""`HOSTCB_INSTALL=1`: imports hostcb, which installs itself, as soon as a program has imported JAX (H27).

Python runs `hostcb_startup.pth` when it starts, and that file imports this module where the variable is set. So nothing
here may fail, take long, or import JAX or hostcb by itself. A wheel has both files beside its packages.
"""

from __future__ import annotations

import os
import sys

# Python need not import `typing` and others for the annotations.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# As hostcb reads it; other words are hostcb's to judge.
FALSE = {"", "0", "false", "f", "no", "n", "off"}


def import_hostcb() -> None:
    try:
        # The end of this import installs hostcb.
        import hostcb  # noqa: F401
    except Exception as error:
        give_up(error)


def give_up(error: Exception) -> None:
    reason = " ".join(str(error).split()) or type(error).__name__
    print(f"hostcb: HOSTCB_INSTALL has no effect, and JAX's own callbacks stay in use: {reason}", file=sys.stderr)


class AfterJax:
    """Finds JAX where the other finders find it, and lets hostcb come after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "jax":
            return None
        for finder in [other for other in sys.meta_path if other is not self]:
            # A finder may lack the method, and such a one Python passes over, too.
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                self.follow(spec.loader)
                return spec
        return None

    def follow(self, loader: Any) -> None:
        """Let this loader, which is of this one import, import hostcb at its end."""
        try:
            execute = loader.exec_module

            def then_hostcb(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                import_hostcb()

            loader.exec_module = then_hostcb
        except Exception as error:
            give_up(error)


def start() -> None:
    if os.environ.get("HOSTCB_INSTALL", "").strip().lower() in FALSE:
        return
    if "jax" in sys.modules:
        import_hostcb()
    else:
        sys.meta_path.insert(0, AfterJax())


start()
