"""A forked child starts without its parent's queued values, executions and failures (H17).

The threads that run them exist only in the parent. Without this module the child would run its parent's taps a second
time, or wait at its exit for programs that never end there.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .._compat import waiting
from .._errors.failures import failure_log
from .._threads.deadlines import forget_waiters
from .._threads.switching import switch_interval
from .executions.executions import tracker
from .memory.blocks import blocks
from .observing import counting, recording
from .queue import consumers
from .queue.queues import queues


def _forget() -> None:
    # Their batons are replaced, too, since a thread of the parent may have had one.
    for queue in queues.all():
        queue.reset_after_fork()
    queues.clear()
    # The threads that the parent was starting are not in the child, and their numbers may be given again.
    consumers.starting.clear()
    blocks.reset_after_fork()
    tracker.reset_after_fork()
    forget_waiters()
    failure_log.forget()
    recording.reset_after_fork()
    counting.reset_after_fork()
    switch_interval.forked()
    # JAX would wait for the parent's tokens at exit.
    waiting.forget_tokens()


def in_forked_child(function: Callable[[], None]) -> None:
    """Call `function` in each forked child. Windows cannot fork, and its `os` lacks what this needs."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


in_forked_child(_forget)
