"""JAX's own callbacks, as far as the release has them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import jax
from jax.experimental import io_callback

from ..spec.callbacks import Callback
from ..spec.jax_versions import JaxRuntimeError
from .external import ExternalCallbacks

NAMESPACE = SimpleNamespace(pure_callback=jax.pure_callback, io_callback=io_callback, debug=jax.debug)
# Older releases lack these. The suite runs on them to find the release that changed a behaviour.
with contextlib.suppress(ModuleNotFoundError):
    NAMESPACE.buffer_callback = importlib.import_module("jax.experimental.buffer_callback").buffer_callback

FORGETS_FAILURES = (0, 12)
"""The first release whose barrier raises a failure once."""


class Jax(ExternalCallbacks):
    name = "jax"
    callback_exception: type[Exception] = JaxRuntimeError

    def lacks(self, callback: Callback) -> str | None:
        """The function or the option of a callback that this release lacks."""
        missing = super().lacks(callback)
        missing = f"{missing} in {jax.__version__}" if missing else None
        if not missing and callback.partitioned and not _names(jax.debug.callback, "partitioned"):
            # This function passes unknown options on to the callback.
            missing = f"debug.callback(partitioned=...) in {jax.__version__}"
        if not missing and callback.function == "debug.print" and not _prints_text():
            missing = f"debug.print of text in {jax.__version__}"
        if missing or callback.function != "pure_callback" or callback.vmap_method is None:
            return missing
        return None if _knows(callback.vmap_method) else f"vmap_method={callback.vmap_method!r} in {jax.__version__}"

    def barrier(self) -> None:
        """It raises a failure once, as JAX's own does from 0.12 on.

        Before, JAX's barrier raises it again and again, and so in later cells of the process.
        """
        try:
            jax.effects_barrier()
        except Exception:
            if jax.__version_info__ < FORGETS_FAILURES:
                # No public name clears them.
                importlib.import_module("jax._src.dispatch").runtime_tokens.clear()
            raise


def _names(function: Any, option: str) -> bool:
    return option in inspect.signature(function).parameters


def _prints_text() -> bool:
    """Tested by tracing, which raises for an operand that is not a value of JAX."""
    try:
        jax.eval_shape(lambda: jax.debug.print("{text}", text="text"))
    except TypeError:
        return False
    return True


def _knows(vmap_method: str) -> bool:
    """Tested by tracing: JAX refuses an unknown method. A release without the option passes it to the function."""
    if not _names(jax.pure_callback, "vmap_method"):
        return False
    scalar = jax.ShapeDtypeStruct((), "float32")
    try:
        jax.eval_shape(lambda x: jax.pure_callback(lambda y: y, scalar, x, vmap_method=vmap_method), scalar)
    except ValueError:
        return False
    return True


IMPLEMENTATION = Jax(NAMESPACE)
