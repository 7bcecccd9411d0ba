"""The hook at the end of JAX's fast dispatch, which runs no other Python code. Each thread sets its own hook.

JAX uses this hook for `jax.debug_nans`. While hostcb watches a thread, it calls JAX's function after its own, also a
function that JAX sets meanwhile. When hostcb stops watching, it puts JAX's function back.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from .registry import Cost, called_with, private

# The methods are jaxlib's; Python cannot inspect their signatures.
_PLACE = private(
    "jax._src.api:_post_hook_state",
    "Raises the error of a pure callback at the end of JAX's fast dispatch.",
    "Programs of pure callbacks are dispatched in Python, in six times the time.",
    ("D3",),
    Cost.COMFORT,
    methods={"get_local": called_with(0), "set_local": called_with(1), "get_global": called_with(0)},
)
place_of_hook = _PLACE.value

# Gets the frame that dispatched. Returns what raises an error in place of the results, and whether to go on watching.
Watcher = Callable[[FrameType | None], tuple[Callable[[], NoReturn] | None, bool]]


class _Local(threading.local):
    def __init__(self) -> None:
        # hostcb's hook, while it watches this thread, and the function of JAX that it replaces.
        self.hook: Any = None
        self.replaced: Any = None


_local = _Local()


class _Guard:
    """Replaces the object on which JAX sets its hook, so that JAX cannot remove hostcb's hook while hostcb watches."""

    def __init__(self, place: Any):
        self._place = place

    def set_local(self, hook: Any) -> None:
        if _is_watched(self._place):
            _local.replaced = hook
        else:
            self._place.set_local(hook)

    def get_local(self) -> Any:
        return _local.replaced if _is_watched(self._place) else self._place.get_local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)


if place_of_hook is not None:
    # When JAX changes the hook for `jax.debug_nans`, it calls the guard.
    _PLACE.put(_Guard(place_of_hook))


def watch_dispatches(watcher: Watcher) -> bool:
    """Call `watcher` at the end of this thread's fast dispatches; False if this JAX has no hook for that."""
    place: Any = place_of_hook
    if place is None:
        return False
    if _is_watched(place):
        return True

    def hook(*dispatch: Any) -> None:
        raise_error, goes_on = watcher(sys._getframe().f_back)
        if not goes_on:
            _local.hook = None
            place.set_local(_local.replaced)
        if raise_error is not None:
            try:
                raise_error()
            finally:
                # The traceback refers to this frame, and this variable would close a reference cycle.
                del raise_error
        # JAX's hook for this thread is a function, None for no hook, or a mark for "use the global hook".
        is_own = _local.replaced is None or callable(_local.replaced)
        jaxs = _local.replaced if is_own else place.get_global()
        if jaxs is not None:
            jaxs(*dispatch)

    # The order matters: a signal handler may run between two of these lines, and may dispatch.
    _local.replaced = place.get_local()
    _local.hook = hook
    place.set_local(hook)
    return True


def _is_watched(place: Any) -> bool:
    return _local.hook is not None and place.get_local() is _local.hook
