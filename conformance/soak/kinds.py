"""The kinds of callbacks in a soak, and what each promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    name: str
    """The name of the suite's callback."""
    ordered: bool = False
    once: bool = True
    """Whether a run of the program calls it exactly once at each step. If not, at least once."""
    returns: bool = False
    data: bool = True
    """Whether an array goes along with the code. It does not with what is printed."""
    on_mesh: bool = True
    """Whether a program that `jit` spreads over a mesh calls it once."""
    fails: bool = False
    """Whether the soak lets it raise."""
    eager: bool = False
    """Whether the soak calls it outside of programs, too."""


_ALL = (
    Kind("id_tap", ordered=True, fails=True, eager=True),
    Kind("id_tap_device", ordered=True, fails=True),
    Kind("id_print", ordered=True, data=False),
    Kind("call", ordered=True, returns=True, fails=True, eager=True),
    Kind("io_callback", returns=True),
    Kind("io_callback_ordered", ordered=True, returns=True, fails=True, eager=True),
    Kind("pure_callback", once=False, returns=True),
    Kind("debug_callback"),
    Kind("debug_callback_ordered", ordered=True, fails=True),
    Kind("debug_print", data=False),
    Kind("debug_print_ordered", ordered=True, data=False),
    Kind("buffer_callback", once=False, returns=True, on_mesh=False),
    Kind("buffer_callback_side_effect", returns=True, on_mesh=False),
    Kind("dlpack_callback", once=False, returns=True, on_mesh=False),
    Kind("dlpack_callback_side_effect", returns=True, on_mesh=False),
)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}

TAPS = frozenset({"id_tap", "id_tap_device"})
"""Kinds whose failure ends no computation: the next barrier reports it."""

DEVICE_INDEX = frozenset({"id_tap", "id_tap_device", "id_print", "call"})
"""Kinds that take the number of the device of a mesh that calls back."""
