"""Errors of pure callbacks under JAX's fast dispatch.

A program without effects is dispatched in C++ from its second run on, which takes a sixth of the time. There, an error
of the computation comes out as a `ValueError` without a cause, where the first run raised `JaxRuntimeError`. So a
callback that fails in such a dispatch lets the computation end with zeros, and a hook that JAX calls at the end of
each dispatch raises the error in place of the results: the same type each time, and with its cause. Until then no
other callback of that dispatch is called: it might be given the zeros.

Going on with zeros must be harmless. Without effects nobody sees them; but a loop that computes when to end could run
for ever on them, and in a larger program the runtime may call from a thread other than the dispatching one, where the
hook cannot be set. So only short programs are dispatched like that whose loops have a number of steps that the compiler
knows, and not too many, and all others in Python, where errors need no help.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING

import jax

from . import _hooks
from ._running import running

if TYPE_CHECKING:
    from ._executions import Program

# Up to so many operations on values of so many bytes XLA's CPU runtime runs one after another, in the dispatching
# thread. It hands parts of larger ones to its pool, and goes on in whichever thread is done last.
MOST_OPERATIONS = 8
MOST_BYTES = 16384
# How many steps the loops of a program may take in all. After a failure they go on to their end, a microsecond each; an
# interrupt at the wrong moment of these lets the next dispatch at the same place fail as well, see `Pending`.
MOST_STEPS = 1_000
TARGET = "xla_buffer_python_cpu_callback"

_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.-]+) \(.*\{\n((?:.*\n)*?)\}", re.MULTILINE)
_OPERATION = re.compile(r" = (?:\([^)]*\)|\S+) ([a-z][\w-]*)\(")
_BODY = re.compile(r", body=%([\w.-]+)")
_STEPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_SIZES = re.compile(r"\b[a-z]\w*\[([\d,]*)\]")
_FREE = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast"))
# What decides on values which operations run, or leaves them to other threads.
_UNKNOWN = frozenset(("conditional", "call", "async-start"))


def is_simple(text: str, callbacks: int) -> bool:
    """Whether a program, given as optimized HLO, may be dispatched natively if it holds so many callbacks."""
    # Another custom call could fail by itself, and end the dispatch before the hook is called.
    ours = text.count(f'custom_call_target="{TARGET}"')
    if not _OPERATION.findall(text).count("custom-call") == ours <= min(MOST_OPERATIONS, callbacks):
        return False
    computations = {name: lines for _, name, lines in _COMPUTATION.findall(text)}
    entry = next((name for is_entry, name, _ in _COMPUTATION.findall(text) if is_entry), "")
    sequences = _sequences(computations, entry)
    if sequences is None:
        return False
    alone = len(sequences) == len(sequences[0]) == ours == 1
    return alone or (all(len(each) <= MOST_OPERATIONS for each in sequences) and _largest(text) <= MOST_BYTES)


def _sequences(computations: Mapping[str, str], entry: str, steps: int = 1) -> list[list[str]] | None:
    """What a program runs one after another: the operations of its entry, and of its loops' bodies.

    None if that cannot be told, or if it is run more than `MOST_STEPS` times.
    """
    own: list[str] = []
    sequences = [own]
    for line in computations.get(entry, "").splitlines():
        found = _OPERATION.search(line)
        if found is None or found[1] in _FREE:
            continue
        own.append(found[1])
        if found[1] == "while":
            body, count = _BODY.search(line), _STEPS.search(line)
            inner = steps * int(count[1]) if count else MOST_STEPS + 1
            if body is None or inner > MOST_STEPS:
                return None
            nested = _sequences(computations, body[1], inner)
            if nested is None:
                return None
            sequences += nested
    return sequences if own and _UNKNOWN.isdisjoint(own) else None


def _largest(text: str) -> int:
    """The size in bytes of the largest value in a program, as if all types were of the largest."""
    return max((16 * math.prod(map(int, filter(None, sizes.split(",")))) for sizes in _SIZES.findall(text)), default=0)


class Pending:
    """An error that the dispatch which a frame of this thread is in will raise at its end."""

    def __init__(self, error: Exception, caller: FrameType):
        self.error = error
        self._caller, self._instruction = caller, caller.f_lasti

    def concerns(self, caller: FrameType | None) -> bool:
        """Whether `caller` is in that dispatch, rather than in one that, say, a signal handler makes meanwhile."""
        return caller is self._caller and caller.f_lasti == self._instruction

    def at_the_end(self, caller: FrameType | None) -> bool:
        """Called at the end of each dispatch of this thread: raise, or say that it was not the one."""
        if running.frame.pending is not self:
            # An interrupt ended that dispatch.
            return True
        if not self.concerns(caller):
            return False
        running.frame.pending = None
        raise self.error


def has_failed() -> bool:
    """Whether the dispatch that calls the handler has failed already, so that nothing should be called any more.

    What this handler would be given may be the zeros that a failed one left.
    """
    pending = running.frame.pending
    return pending is not None and pending.concerns(sys._getframe(1).f_back)


def postpone(program: Program, error: Exception) -> bool:
    """Let the native dispatch that calls the handler raise `error` at its end; False if there is none."""
    caller = sys._getframe(1).f_back
    if not program.native or caller is None:
        # The second: a thread of the runtime, which runs no Python beneath the handler.
        return False
    execution = running.frame.execution
    if execution is not None and execution.program is program:
        # Dispatched in Python: raised there.
        return False
    shown = jax.errors.JaxRuntimeError(f"INTERNAL: {error}")
    shown.__cause__ = error.__cause__
    # The error has it, and nothing else needs it.
    program.failures.clear()
    running.frame.pending = pending = Pending(shown, caller)
    # The last, since an interrupt after it would end the dispatch otherwise.
    return _hooks.call_after_dispatch(pending.at_the_end)
