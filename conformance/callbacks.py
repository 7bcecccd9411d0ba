"""What each host callback promises, as far as a program can observe it.

A `Callback` is the specification side of one public function with one set of options: the semantic
model and the checkers read it, an implementation says separately how it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

CONSTANT_OPERAND = 5.0
"""The operand that no transform ever batches; it makes `batch_dims` hold a `None`."""

RETURNED_OFFSET = 1.0
"""What a callback with a result of its own adds to its operand."""


class Batching(Enum):
    """What one vmap does to the callback."""

    STACKED = "stacked"
    """One callback with the whole batch, and an entry in `transforms`."""
    REFUSED = "refused"
    SEQUENTIAL = "sequential"
    """One callback per lane."""
    EXPAND_DIMS = "expand_dims"
    """One callback; operands without batch get a leading axis of size one."""
    BROADCAST_ALL = "broadcast_all"
    """One callback; operands without batch are repeated."""


class DeviceChoice(Enum):
    """Which device of a computation over a mesh runs the callback."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Callback:
    name: str
    promises: tuple[str, ...]
    batching: Batching
    differentiable: bool
    returns_new_value: bool = False
    receives_device: bool = False
    receives_transforms: bool = False
    takes_tree: bool = False
    device_choice: DeviceChoice = DeviceChoice.FIRST
    vmap_method: str | None = None

    @property
    def recomputed(self) -> bool:
        """Whether checkpoint runs it again; the result of a call is saved instead."""
        return self.differentiable


def _tap(
    name: str,
    *promises: str,
    returns_new_value: bool = False,
    receives_device: bool = False,
    takes_tree: bool = False,
    device_choice: DeviceChoice = DeviceChoice.FIRST,
) -> Callback:
    return Callback(
        name,
        promises,
        Batching.STACKED,
        differentiable=True,
        returns_new_value=returns_new_value,
        receives_device=receives_device,
        receives_transforms=True,
        takes_tree=takes_tree,
        device_choice=device_choice,
    )


def _call(name: str, *promises: str, returns_new_value: bool = True, receives_device: bool = False) -> Callback:
    return Callback(
        name,
        promises,
        Batching.REFUSED,
        differentiable=False,
        returns_new_value=returns_new_value,
        receives_device=receives_device,
    )


def _batched_call(vmap_method: str, batching: Batching) -> Callback:
    return Callback(
        f"call_{vmap_method}",
        ("H8",),
        batching,
        differentiable=False,
        returns_new_value=True,
        takes_tree=True,
        vmap_method=vmap_method,
    )


HOST_CALLBACKS: tuple[Callback, ...] = (
    _tap("id_tap", "H1"),
    _tap("id_tap_result", "H1", returns_new_value=True),
    _tap("id_tap_device", "H1", "H9", receives_device=True),
    _tap("id_tap_tree", "H1", "H7", takes_tree=True),
    _tap("id_tap_device_index", "H10", receives_device=True, device_choice=DeviceChoice.LAST),
    _tap("id_print", "H2"),
    _call("call", "H3", "H8"),
    _call("call_no_result", "H3", returns_new_value=False),
    _call("call_device", "H3", "H9", receives_device=True),
    _batched_call("sequential", Batching.SEQUENTIAL),
    _batched_call("sequential_unrolled", Batching.SEQUENTIAL),
    _batched_call("expand_dims", Batching.EXPAND_DIMS),
    _batched_call("broadcast_all", Batching.BROADCAST_ALL),
)
