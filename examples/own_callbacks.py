"""Run the conformance suite on the callbacks of another library; neither imports the other.

    cd examples && python -m conformance run --implementation own_callbacks

`OwnLibrary` stands for the library: it has two callbacks with the signatures of JAX's, and counts their uses. The rest
of this file is all that the suite needs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
from jax.experimental import io_callback

from conformance.implementations.external import ExternalCallbacks


class OwnLibrary:
    """The tested library; you would import yours."""

    uses = 0

    @classmethod
    def pure_callback(cls, function: Any, result_shape: Any, *operands: Any, vmap_method: str | None = None) -> Any:
        cls.uses += 1
        return jax.pure_callback(function, result_shape, *operands, vmap_method=vmap_method)

    @classmethod
    def io_callback(cls, function: Any, result_shape: Any, *operands: Any, ordered: bool = False) -> Any:
        cls.uses += 1
        return io_callback(function, result_shape, *operands, ordered=ordered)

    @staticmethod
    def wait() -> None:
        jax.effects_barrier()


class OwnCallbacks(ExternalCallbacks):
    """Callbacks with JAX's signatures need only their names; for others, override `probe`."""

    name = "own_callbacks"
    callback_exception: type[Exception] = jax.errors.JaxRuntimeError

    def barrier(self) -> None:
        OwnLibrary.wait()


IMPLEMENTATION = OwnCallbacks(
    SimpleNamespace(pure_callback=OwnLibrary.pure_callback, io_callback=OwnLibrary.io_callback)
)
