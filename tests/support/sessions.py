"""How much a session of tests does: `HOSTCB_TESTS=thorough` asks for all of it. Nothing here imports JAX."""

from __future__ import annotations

import os

from conformance.spec.xla_flags import QUICK_COMPILATION, known

THOROUGH = os.environ.get("HOSTCB_TESTS", "usual") == "thorough"

XLA_FLAGS = () if THOROUGH else known(QUICK_COMPILATION)
"""A quarter of a session is LLVM's otherwise, in programs that run once. A thorough one compiles as users do."""


def rounds(usual: int, thorough: int) -> int:
    """How often something is tried that goes wrong by chance, if at all."""
    return thorough if THOROUGH else usual
