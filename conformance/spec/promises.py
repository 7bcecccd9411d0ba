"""Which promises of docs/contract.md are about which functions: a cell of another function does not cite them."""

from __future__ import annotations

from collections.abc import Mapping

TAPS = ("id_tap", "id_print")
EXTERNAL = ("pure_callback", "io_callback", "debug.callback", "debug.print")
OF_ARRAYS = ("id_tap", "call", "pure_callback", "io_callback", "debug.callback")
OF_BUFFERS = ("buffer_callback", "dlpack_callback")
WITH_RESULTS = ("call", "pure_callback", "io_callback", *OF_BUFFERS)

ABOUT: Mapping[str, tuple[str, ...]] = {
    "H1": ("id_tap",),
    "H2": ("id_print",),
    "H3": ("call",),
    "H6": (*TAPS, "call"),
    "H7": (*TAPS, "call"),
    "H8": ("call",),
    "H11": OF_ARRAYS,
    "H12": TAPS,
    "H14": TAPS,
    "H15": WITH_RESULTS,
    "X1": EXTERNAL,
    "X2": ("pure_callback",),
    "X3": ("io_callback",),
    "X4": ("debug.callback", "debug.print"),
    "X5": ("pure_callback", "io_callback"),
    **dict.fromkeys(("B1", "B2", "B3", "B4", "B5", "B6"), OF_BUFFERS),
    **dict.fromkeys(("D1", "D2"), ("dlpack_callback",)),
}
"""The functions that a promise names. To all others it does not apply. A promise that is not here is about all."""

_NAMED = {function for functions in ABOUT.values() for function in functions}

OF_ORDER = "H5"
"""The promise of ordered callbacks alone."""


def is_about(promise: str, function: str, parts: tuple[str, ...] = ()) -> bool:
    """Whether a promise names this function, or one of the parts of a mixture."""
    asked = {function, *parts}
    if promise not in ABOUT or not asked & _NAMED:
        # A vendor's function may have the promises that the vendor names.
        return True
    return bool(asked & {*ABOUT[promise]})
