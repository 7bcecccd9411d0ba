"""JAX's own callbacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
from jax.experimental import buffer_callback, io_callback

from conformance.implementations.external import ExternalCallbacks

NAMESPACE = SimpleNamespace(
    pure_callback=jax.pure_callback,
    io_callback=io_callback,
    debug=jax.debug,
    buffer_callback=buffer_callback.buffer_callback,
)


class Jax(ExternalCallbacks):
    name = "jax"
    callback_exception: type[Exception] = jax.errors.JaxRuntimeError

    def tap(self, function: Any, operand: Any) -> Any:
        raise NotImplementedError("JAX has no taps")

    def call(self, function: Any, operand: Any, result_shape: Any) -> Any:
        raise NotImplementedError("JAX's calls are pure_callback and io_callback")

    def barrier(self) -> None:
        jax.effects_barrier()


IMPLEMENTATION = Jax(NAMESPACE)
