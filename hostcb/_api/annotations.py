"""The types of the arguments of a `buffer_callback`'s function, for annotations and `isinstance` (B6)."""

from __future__ import annotations

try:
    from jax.experimental.buffer_callback import Buffer, ExecutionContext, ExecutionStage
except Exception:
    # A JAX that has them elsewhere or not at all, or whose module cannot be imported as it is (H21). Annotations still
    # name a class; no object is an instance of it.
    class Buffer:  # type: ignore[no-redef]
        """Stands for the class of device buffers, which this JAX does not name."""

    class ExecutionContext:  # type: ignore[no-redef]
        """Stands for the class of `ctx`, which this JAX does not name."""

    class ExecutionStage:  # type: ignore[no-redef]
        """Stands for the class of `ctx.stage`, which this JAX does not name."""


__all__ = ("Buffer", "ExecutionContext", "ExecutionStage")
