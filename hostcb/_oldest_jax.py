"""Refuses a JAX that is too old. The other modules use names that such a JAX does not have, so this one comes first."""

from __future__ import annotations

import jax

OLDEST = (0, 10, 2)


def check() -> None:
    if jax.__version_info__ < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"hostcb needs JAX {oldest} or newer, and JAX {jax.__version__} is installed:"
            f" pip install --upgrade 'jax>={oldest}'"
        )
