"""The number that a callback's operand carries: which run of a program, which device of it, which step.

31 bits, so that it is an `int32` of JAX. The number of a run comes again only after 262,144 others.
"""

from __future__ import annotations

_POSITION_BITS = 10
_SLOT_BITS = 3

POSITIONS = 1 << _POSITION_BITS
"""The most steps that a run has on one device."""

SLOTS = 1 << _SLOT_BITS
"""The most devices of a run."""

NUMBERS = 1 << (31 - _POSITION_BITS - _SLOT_BITS)

RESULT_MARK = 0x5A5A
"""A callback with a result returns its code with these bits flipped."""

SMALL = 127
"""The data beside a code repeat its last seven bits, which every element type holds exactly."""


def base_code(number: int, slot: int) -> int:
    """The code of a run's first step on its device number `slot`."""
    return (number % NUMBERS) << (_POSITION_BITS + _SLOT_BITS) | slot << _POSITION_BITS


def parts_of(code: int) -> tuple[int, int, int]:
    """The number of the run, the slot and the position."""
    return (
        code >> (_POSITION_BITS + _SLOT_BITS),
        code >> _POSITION_BITS & (SLOTS - 1),
        code & (POSITIONS - 1),
    )
