"""Numbers at which hostcb takes another way with a value or a program. Cases try numbers below, at and above each.

The suite has its own copy of each number, since it also runs where hostcb is not installed. A test compares them.
"""

from __future__ import annotations

RING_VALUE = 1 << 16
"""Bytes of an operand of a tap in the ring in C; larger operands are in memory that is used again."""

BLOCK = 1 << 20
"""Bytes of an operand whose copy is in memory that is used again."""

PAST_CACHES = 4 << 20
"""Bytes that are copied past the processor's caches, and of a result whose memory is in large pages."""

RING = 1 << 24
"""Bytes of a device's ring, which begins anew at its end."""

READ_AHEAD = 256
"""Records of a ring that are read at once."""

FAST_OPERATIONS = 8
"""Operations of a program with fast dispatch."""

FAST_BYTES = 16384
"""Bytes of a value in such a program, at 16 an element."""

FAST_STEPS = 1000
"""Steps of the loops in such a program."""

UNROLLED_ELEMENTS = 16
"""Batch elements of a vmap whose callbacks are unrolled."""

LIVE_EXECUTIONS = 64
"""Executions that are tracked."""

WAITING_EXECUTIONS = 16
"""Programs that wait on a device and leave room for those of callbacks."""

GENERATIONS = 16
"""Programs, each started by a callback of the one before, for which a barrier waits."""


def around(number: int) -> tuple[int, int, int]:
    return number - 1, number, number + 1
