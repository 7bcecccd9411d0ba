"""The local variables that an exception keeps alive, by the frames of its traceback and by their callers (B1, H13).

A frame keeps the frame that called it. So an exception keeps the frames of hostcb and of JAX around those that its
traceback shows, and if a callback ran in the thread that dispatched its program, all frames of the program's callers.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from types import FrameType

# The user's class may let any access to the attributes of an exception raise.
_traceback, _cause, _context, _suppressed = (
    vars(BaseException)[f"__{name}__"].__get__ for name in ("traceback", "cause", "context", "suppress_context")
)
_exceptions = vars(BaseExceptionGroup)["exceptions"].__get__

_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def forget_locals(exception: BaseException) -> None:
    """Clear the local variables in all frames that an exception, its causes and its contexts keep."""
    for frame in _shown(exception):
        _clear(frame)
    forget_callers(exception)


def forget_callers(exception: BaseException) -> None:
    """As `forget_locals`, but leave the frames that the tracebacks show."""
    shown = _shown(exception)
    seen = set(shown)
    for frame in shown:
        around = frame.f_back
        # The callers of a running frame run, too. A shown one has its own turn.
        while around is not None and around not in seen and _clear(around):
            seen.add(around)
            around = around.f_back


def _shown(exception: BaseException) -> dict[FrameType, None]:
    """Return the frames of the tracebacks, in an order."""
    return {frame: None for each in _with_others(exception) for frame, _ in traceback.walk_tb(_traceback(each))}


def chain(exception: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that Python shows before it: its cause or its context, and so on."""
    seen: set[int] = set()
    each: BaseException | None = exception
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        # Not by its truth value: an exception may have a length. With a cause, the context is suppressed.
        each = _cause(each) if _suppressed(each) else _context(each)


def _with_others(exception: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and those that it groups."""
    chain: list[BaseException | None] = [exception]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        chain += [_cause(each), _context(each)]
        if issubclass(type(each), BaseExceptionGroup):
            chain += _exceptions(each)


def _clear(frame: FrameType) -> bool:
    """Clear a frame; return False if it runs."""
    if frame.f_code.co_flags & _RESUMABLE:
        # Clearing it would end the generator.
        return True
    try:
        frame.clear()
    except RuntimeError:
        return False
    return True
