"""What `import hostcb` refuses, and what a second import of it gives. No other module is imported before this one."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax

PACKAGE = __name__.partition(".")[0]
OLDEST = (0, 10, 2)


def check() -> None:
    """Refuse a JAX that lacks what the other modules use, and a Python in which single steps of theirs are races."""
    if jax.__version_info__ < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"hostcb needs JAX {oldest} or newer, and JAX {jax.__version__} is installed:"
            f" pip install --upgrade 'jax>={oldest}'"
        )
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "hostcb needs Python's interpreter lock (GIL), and it is off in this free-threaded Python: "
            "set PYTHON_GIL=1 in the environment, or start Python with -X gil=1"
        )


class _Once(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the modules of the first import again, after they were taken out of `sys.modules` and for a reload.

    JAX has the functions of the first import. A second copy of hostcb would take them for those of an unknown JAX, and
    the programs that the first one has lowered would be unknown to it.
    """

    def __init__(self) -> None:
        self._modules: dict[str, tuple[ModuleType, Any]] = {}

    def keep(self) -> None:
        """Keep the modules that are imported now."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == PACKAGE:
                self._modules[name] = module, module.__spec__
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name not in self._modules:
            return None
        warnings.warn(
            f"hostcb: this process has imported {name} before. JAX has the functions of that import, so its modules "
            f"stay in use, from {self._modules[PACKAGE][0].__file__}. Restart Python to import another hostcb.",
            RuntimeWarning,
            stacklevel=2,
        )
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: Any) -> ModuleType:
        return self._modules[spec.name][0]

    def exec_module(self, module: ModuleType) -> None:
        # The import system has set the spec of this import.
        module.__spec__ = self._modules[module.__name__][1]
        for name, (each, _) in self._modules.items():
            sys.modules.setdefault(name, each)


once = _Once()
