"""Which promises of docs/contract.md are about which kinds of callback, and why others have no cells: reviewed data.

A pair of a promise and a kind has cells, or one reason here, or is a hole. A reason for a pair with cells is stale.
`docs/contract.md` numbers the promises; those of the suite itself (C) are about no kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PROMISES = (
    *(f"H{number}" for number in range(1, 33)),
    *(f"X{number}" for number in range(1, 7)),
    *(f"B{number}" for number in range(1, 7)),
    *(f"D{number}" for number in range(1, 4)),
)

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
    "B1": OF_BUFFERS,
    "B2": OF_BUFFERS,
    "B3": OF_BUFFERS,
    "B4": OF_BUFFERS,
    "B5": OF_BUFFERS,
    "B6": OF_BUFFERS,
    "D1": ("dlpack_callback",),
    "D2": ("dlpack_callback",),
}
"""The functions that a promise names. To all others it does not apply. A promise that is not here is about all."""

_NAMED = {function for functions in ABOUT.values() for function in functions}

OF_ORDER = "H5"
"""The promise of ordered callbacks alone."""

TESTS_ALONE: Mapping[str, str] = {
    "X6": "the examples of JAX's guide are tests, since each is a program of its own",
    "D3": "costs are measured by benchmarks, not by cells",
    "H16": "flags are of a process: tests set each of them in each way",
    "H19": "the logger's words are no part of a program",
    "H20": "the examples are tests",
    "H21": "an unknown JAX is made by tests, which take private names of JAX away",
    "H22": "a trace is a file, which tests read",
    "H24": "nearly every cell of a tap goes through the library in C, where it is built; tests compare both ways",
    "H25": "the switch interval is of a process: tests read it",
    "H26": "CI has no GPU; tests have a stand-in for the driver",
    "H27": "an installation is of a process, and of JAX's functions: tests install hostcb",
    "H28": "an environment variable of a process that starts: tests start some",
    "H29": "statistics are hostcb's own figures, which tests compare",
    "H31": "a profile is a file, which tests read",
    "H32": "the words of errors are hostcb's own, and tests read them",
    "B6": "names for annotations, which do nothing when a program runs",
}
"""Promises that tests hold. A cell may cite one of them all the same."""

OPTIONS: Mapping[str, tuple[str, str]] = {
    "id_tap_result": ("id_tap", "result= changes what the program gets, and nothing on the way to the host"),
    "id_tap_device": ("id_tap", "tap_with_device= adds an argument of the function"),
    "id_tap_tree": ("id_tap", "a tree of operands; the same tap"),
    "id_tap_device_index": ("id_tap", "device_index= chooses the device of a mesh"),
    "call_no_result": ("call", "a call without result_shape"),
    "call_device": ("call", "call_with_device= adds an argument of the function"),
    "call_sequential": ("call", "vmap_method= is for vmap"),
    "call_sequential_unrolled": ("call", "vmap_method= is for vmap"),
    "call_expand_dims": ("call", "vmap_method= is for vmap"),
    "call_broadcast_all": ("call", "vmap_method= is for vmap"),
    "pure_callback_sequential": ("pure_callback", "vmap_method= is for vmap"),
    "pure_callback_sequential_unrolled": ("pure_callback", "vmap_method= is for vmap"),
    "pure_callback_expand_dims": ("pure_callback", "vmap_method= is for vmap"),
    "pure_callback_broadcast_all": ("pure_callback", "vmap_method= is for vmap"),
    "pure_callback_sharding": ("pure_callback", "sharding= chooses the device of a mesh"),
    "io_callback_sharding": ("io_callback", "sharding= chooses the device of a mesh"),
    "debug_callback_partitioned": ("debug_callback", "partitioned= is for a mesh"),
    "buffer_callback_alias": ("buffer_callback", "input_output_aliases= lets a result use an operand's memory"),
    "dlpack_callback_in_place": ("dlpack_callback", "in_place= lets the function write its results"),
}
"""Callbacks that are an option of another one. Cells of that other one test what the option does not change."""


@dataclass(frozen=True)
class Reason:
    promises: str
    kinds: str
    """Names of callbacks, or functions."""
    words: str


_SIDE_EFFECT = "buffer_callback_side_effect dlpack_callback_side_effect"

REASONS: tuple[Reason, ...] = (
    Reason(
        OF_ORDER,
        f"pure_callback io_callback debug_callback debug_print buffer_callback dlpack_callback {_SIDE_EFFECT}",
        "it keeps no order: each cell counts its calls",
    ),
    Reason("H12", "id_print", "a print is a tap whose function writes; the queue does not know the function"),
    Reason(
        "H13 H30",
        "pure_callback buffer_callback dlpack_callback",
        "not promised: a pure callback may as well not run, and no barrier waits for it",
    ),
    Reason(
        "H17",
        "id_print debug.print io_callback_ordered debug_callback_ordered buffer_callback dlpack_callback "
        + _SIDE_EFFECT,
        "the exit waits for queues and executions, which know no kinds; each has cells with another kind",
    ),
    Reason(
        "X1",
        "io_callback_ordered debug_callback_ordered debug.print",
        "the guide's table has one row for each function; its footnotes on order are cells of io_callback",
    ),
    Reason("B3", _SIDE_EFFECT, "aliases are an option, which cells of buffer_callback_alias test"),
    Reason("D2", "dlpack_callback_in_place", "vmap_method= and shapes as functions are options"),
)
"""Further pairs to which the promise does not apply."""

A_MIXTURE = "a mixture: its parts are asked alone, and their common order together"


def is_about(promise: str, function: str, parts: tuple[str, ...] = ()) -> bool:
    """Whether a promise names this function, or one of the parts of a mixture."""
    asked = {function, *parts}
    if promise not in ABOUT or not asked & _NAMED:
        # A vendor's function may have the promises that the vendor names.
        return True
    return bool(asked & {*ABOUT[promise]})
