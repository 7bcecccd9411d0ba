"""The types of the arguments of a `buffer_callback`'s function, for annotations and `isinstance` (B6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # JAX's classes have no types: mypy takes them for `Any`, and pyright refuses them in an annotation.
    import enum
    from typing import Any, Protocol, runtime_checkable

    import numpy as np

    @runtime_checkable
    class Buffer(Protocol):
        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> np.dtype[Any]: ...
        @property
        def writeable(self) -> bool: ...
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]: ...
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, np.dtype[Any]]: ...
        def __dlpack__(
            self, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
        ) -> Any: ...
        def __dlpack_device__(self) -> tuple[Any, ...]: ...

    class ExecutionStage(enum.Enum):
        INSTANTIATE = enum.auto()
        PREPARE = enum.auto()
        INITIALIZE = enum.auto()
        EXECUTE = enum.auto()

    @runtime_checkable
    class ExecutionContext(Protocol):
        @property
        def stage(self) -> ExecutionStage: ...
        @property
        def stream(self) -> int: ...

else:
    try:
        from jax.experimental.buffer_callback import Buffer, ExecutionContext, ExecutionStage
    except Exception:
        # A JAX that has them elsewhere or not at all, or whose module cannot be imported as it is (H21). Annotations
        # still name a class; no object is an instance of it.
        class Buffer:
            """Stands for the class of device buffers, which this JAX does not name."""

        class ExecutionContext:
            """Stands for the class of `ctx`, which this JAX does not name."""

        class ExecutionStage:
            """Stands for the class of `ctx.stage`, which this JAX does not name."""


__all__ = ("Buffer", "ExecutionContext", "ExecutionStage")
