"""JAX's own callbacks, as far as the release has them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from types import SimpleNamespace

import jax
from jax.experimental import io_callback

from conformance.callbacks import Callback
from conformance.implementations.external import ExternalCallbacks
from conformance.jax_versions import JaxRuntimeError

NAMESPACE = SimpleNamespace(pure_callback=jax.pure_callback, io_callback=io_callback, debug=jax.debug)
# Older releases have none; the suite runs there to find the one in which something changed.
with contextlib.suppress(ModuleNotFoundError):
    NAMESPACE.buffer_callback = importlib.import_module("jax.experimental.buffer_callback").buffer_callback


class Jax(ExternalCallbacks):
    name = "jax"
    callback_exception: type[Exception] = JaxRuntimeError

    def lacks(self, callback: Callback) -> str | None:
        """What this release does not have, options that came later included."""
        missing = super().lacks(callback)
        if missing or callback.function != "pure_callback" or callback.vmap_method is None:
            return missing
        return None if _knows(callback.vmap_method) else f"vmap_method={callback.vmap_method!r} in {jax.__version__}"

    def barrier(self) -> None:
        jax.effects_barrier()


def _knows(vmap_method: str) -> bool:
    """Tracing alone finds out: unknown methods are refused, and as an unknown option it would go to the function."""
    if "vmap_method" not in inspect.signature(jax.pure_callback).parameters:
        return False
    scalar = jax.ShapeDtypeStruct((), "float32")
    try:
        jax.eval_shape(lambda x: jax.pure_callback(lambda y: y, scalar, x, vmap_method=vmap_method), scalar)
    except ValueError:
        return False
    return True


IMPLEMENTATION = Jax(NAMESPACE)
