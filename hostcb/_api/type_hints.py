"""Types in the signatures of the public functions, for type checkers alone: no module imports this when it runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

# User functions get NumPy arrays where the caller has JAX arrays, so no type joins an operand and a parameter.
Transforms: TypeAlias = tuple[tuple[str, dict[str, Any]], ...]
Tap: TypeAlias = Callable[[Any, Transforms], object]

# The result of a tap that hostcb refuses because the function is a coroutine function. Python has no type for all other
# functions, but type checkers report a coroutine that is not awaited.
Refused: TypeAlias = Coroutine[Any, Any, NoReturn]


class TapWithDevice(Protocol):
    def __call__(self, value: Any, transforms: Transforms, /, *, device: Any) -> object: ...


class CallWithDevice(Protocol):
    def __call__(self, value: Any, /, *, device: Any) -> Any: ...


class Shape(Protocol):
    """A shape and a dtype: what describes one array, such as `jax.ShapeDtypeStruct`."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


class Stream(Protocol):
    def write(self, text: str, /) -> object: ...
