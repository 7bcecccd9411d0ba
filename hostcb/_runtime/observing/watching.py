"""What watches each run of a user function: traces, spans in JAX's profiles, and counters (H22, H29, H31).

`Host` and the in-place handlers read the reference `on` where they invoke a user function. It is None while nothing
watches, so a program that was compiled before is watched as well, and otherwise nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..._spec.callback import HostCallback


class Watched(Protocol):
    """The callback that runs, `host.Host`."""

    @property
    def callback(self) -> HostCallback: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def about(self) -> Any:
        """What a trace says of it, `recording.About`."""


class Watcher(Protocol):
    def around(
        self, host: Watched, device: Any, arrays: Sequence[Any], invoke: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `invoke` for one run, which is watched; `arrays` are the operands that may be shown."""


class Watchers:
    """All that watches."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def around(
        self, host: Watched, device: Any, arrays: Sequence[Any], invoke: Callable[..., Any]
    ) -> Callable[..., Any]:
        for watcher in self._watchers:
            invoke = watcher.around(host, device, arrays, invoke)
        return invoke


_watching: dict[Watcher, None] = {}

# None while nothing watches.
on: Watchers | None = None


def watch(watcher: Watcher) -> None:
    _watching[watcher] = None
    _switch()


def leave(watcher: Watcher) -> None:
    _watching.pop(watcher, None)
    _switch()


def _switch() -> None:
    """Set `on`; another thread may watch or leave at the same time, so it looks again."""
    global on
    while True:
        watchers = tuple(_watching)
        on = Watchers(watchers) if watchers else None
        if tuple(_watching) == watchers:
            return
