"""Mutants as implementations: the suite's implementation of hostcb, with some public names replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hostcb

from ..implementations.hostcb import Hostcb
from .mutant import Mutant


class Broken(Hostcb):
    def __init__(self, mutant: Mutant) -> None:
        public: dict[str, Any] = {name: getattr(hostcb, name) for name in hostcb.__all__}
        debug = {name: getattr(hostcb.debug, name) for name in ("callback", "print")}
        for name, replacement in mutant.plant(hostcb).items():
            group, _, member = name.rpartition(".")
            (debug if group == "debug" else public)[member] = replacement
        super().__init__(SimpleNamespace(**{**public, "debug": SimpleNamespace(**debug)}))
        # Messages use the path by which the mutant is loaded, which is the clearest name.
        self.name = mutant.implementation
