"""JAX's own callbacks: what JAX's names run, which hostcb exchanges for a part of a program, and what they ran before.

A library may have such a function anywhere: in a module's globals, a closure, a default argument, a `partial`. So
hostcb leaves the function where it is and exchanges its code, which every holder of the function then runs. Signature,
name and identity stay those of JAX's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from .registry import Cost, Entry, plain_function, private


def _function(place: str, *parameters: str) -> Entry:
    return private(
        place,
        "Takes the code of hostcb's function of this name while hostcb is installed.",
        "hostcb.install() is refused, since programs would go on with JAX's own callbacks.",
        ("H27",),
        Cost.SOME,
        plain_function(*parameters),
    )


_FUNCTIONS = {
    "pure_callback": _function("jax:pure_callback", "callback result_shape_dtypes args sharding vmap_method kwargs"),
    "io_callback": _function(
        "jax.experimental:io_callback", "callback result_shape_dtypes args sharding ordered kwargs"
    ),
    "debug.callback": _function("jax.debug:callback", "callback args ordered partitioned kwargs"),
    "debug.print": _function("jax.debug:print", "fmt args ordered partitioned skip_format_check _use_logging kwargs"),
    "buffer_callback": _function(
        "jax.experimental.buffer_callback:buffer_callback",
        "callback result_shape_dtypes has_side_effect vmap_method input_output_aliases command_buffer_compatible",
    ),
}
NAMES = tuple(_FUNCTIONS)

# Where JAX's own callbacks are needed: JAX's debugger; kernels, whose compilers know no other; hostcb's tests for bugs.
_OWN_CALLERS = ("jax._src.debugger.", "jax._src.pallas.", "hostcb._workarounds.")


def _copy(function: Any) -> Any:
    """Another function that does the same; it keeps its code when hostcb exchanges that of the first."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# If one is lost, hostcb exchanges no code.
_OWN = {name: _copy(entry.value) for name, entry in _FUNCTIONS.items() if entry.holds}


def own_callback(name: str) -> Callable[..., Any]:
    """JAX's own callback of this name, also while hostcb stands in its place."""
    return _OWN[name]


def log_failure(name: str, exception: BaseException) -> None:
    """Log a failure of a callback as JAX logs that of its own callback of this name."""
    logger = logging.getLogger(_FUNCTIONS[name].value.__module__)
    # A handler of the log that raises must not end the thread that runs callbacks.
    with contextlib.suppress(Exception):
        logger.error("jax.%s failed", name, exc_info=exception)


@dataclasses.dataclass
class Exchange:
    """The code of JAX's own callbacks, exchanged or as JAX has it."""

    # By the function's name: JAX's code, while hostcb's is in its place.
    _codes: dict[str, types.CodeType] = dataclasses.field(default_factory=dict)

    @property
    def made(self) -> bool:
        return bool(self._codes)

    def check(self) -> None:
        """Refuse the exchange if this JAX has one of the functions in a way unknown to hostcb.

        Raises:
            UnknownJaxError: it has.
        """
        for name, entry in _FUNCTIONS.items():
            if not entry.holds:
                raise entry.refusal(f"hostcb.install(), by which jax's {name} goes through hostcb,")

    def make(self, codes: Mapping[str, types.CodeType]) -> None:
        for name, entry in _FUNCTIONS.items():
            self._codes.setdefault(name, entry.value.__code__)
            entry.value.__code__ = codes[name]

    def undo(self) -> None:
        for name, code in [*self._codes.items()]:
            _FUNCTIONS[name].value.__code__ = code
            # A signal handler may have done so meanwhile.
            self._codes.pop(name, None)


exchange = Exchange()


def needs_own_callback() -> bool:
    """Whether JAX's debugger or the function of a Pallas kernel calls the function whose code hostcb has exchanged.

    Call it from a function that the exchanged code calls.
    """
    frame: types.FrameType | None = sys._getframe(3)
    # The function of a kernel is the user's; the frames of JAX that trace it are further down.
    whole_stack = "jax._src.pallas" in sys.modules
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_OWN_CALLERS):
            return True
        frame = frame.f_back if whole_stack else None
    return False
