"""Which environment variables a fork can still be given, because nothing has read them before.

This module does not import JAX.
"""

from __future__ import annotations

from collections.abc import Mapping

LATE = frozenset({"XLA_FLAGS", "NPROC", "PJRT_NPROC", "PYTEST_CURRENT_TEST"})
"""JAX reads these when it makes its devices, and the server makes none. pytest's names the present cell."""

LATE_PREFIXES = ("HOSTCB_", "JAX_HOST_CALLBACK_")
"""hostcb and the suite read these when hostcb is imported, or later. The server does not import hostcb."""

SETTINGS: Mapping[str, type] = {
    "JAX_CPU_ENABLE_ASYNC_DISPATCH": bool,
    "JAX_COMPILATION_CACHE_DIR": str,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": float,
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": int,
}
"""JAX reads these when it is imported, and uses them when it makes its devices or compiles: a fork sets them."""


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a fork has in common with its server."""
    changeable = LATE | SETTINGS.keys()
    own = {name: value for name, value in environment.items() if name not in changeable}
    return {name: value for name, value in own.items() if not name.startswith(LATE_PREFIXES)}


def settings(environment: Mapping[str, str]) -> dict[str, object]:
    """The settings of JAX that differ in a fork; the server has none of these variables."""
    given = {name: kind for name, kind in SETTINGS.items() if name in environment}
    return {name.lower(): _parsed(kind, environment[name]) for name, kind in given.items()}


def _parsed(kind: type, text: str) -> object:
    # As in jax._src.config.
    return text.lower() in ("y", "yes", "t", "true", "on", "1") if kind is bool else kind(text)
