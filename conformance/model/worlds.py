"""The semantic model: computes the right callbacks and results of a program, without JAX.

A `World` holds all state on which a callback depends at one point of a program: its device, the
vmaps and differentiations around it, and the earlier events. The `model_face` of a transform
interprets programs in worlds; `World.probe` runs a callback.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from ..spec.callbacks import (
    CONSTANT_OPERAND,
    RETURNED_OFFSET,
    UNUSED_SITES,
    Batching,
    Callback,
    DeviceChoice,
    Refusal,
    Runs,
)
from ..spec.data import PLAIN, DataKind, printed
from .values import PRIMAL, Data, Infinitesimal, Value

Transforms: TypeAlias = tuple[tuple[str, dict[str, Any]], ...]


class Need(Enum):
    """How often a history must have an event."""

    ONCE = "once"
    AT_LEAST_ONCE = "at least once"
    ANY_NUMBER = "any number"


@dataclass(frozen=True)
class ExpectedEvent:
    """One callback that must run: its site in the program, its device, and its operand."""

    site: str
    device: int
    leaves: tuple[Data, ...]
    transforms: Transforms = ()
    need: Need = Need.ONCE
    process: int = 0
    """The process that has the device."""
    array: Data | None = None
    """For a printed operand, whose only leaf is the text: what is printed."""


class RefusalError(Exception):
    """The program must be refused: these transforms reach a callback that does not support them."""

    def __init__(self, refusals: Mapping[str, Refusal]) -> None:
        super().__init__(refusals)
        self.refusals = dict(refusals)

    @property
    def transforms(self) -> tuple[str, ...]:
        return tuple(self.refusals)


BackwardStep: TypeAlias = Callable[[Value], object]
"""The backward pass for one part of the forward pass; it gets the differentiated result."""


@dataclass(frozen=True)
class Reverse:
    """A reverse-mode derivative."""

    infinitesimal: Infinitesimal
    outer_levels: tuple[int, ...]
    """The vmaps around it; those inside are batched before JAX transposes."""


@dataclass(frozen=True)
class World:
    callback: Callback
    device_count: int
    history: list[ExpectedEvent] = field(default_factory=list)
    device: int = 0
    on_whole_mesh: bool = False
    """Whether one computation spans all devices, its operand split over them along its first axis."""
    backward: list[BackwardStep] | None = None
    """Steps of the backward pass in the order of the forward pass; None outside of `grad`."""
    reverse: Reverse | None = None
    """The innermost `grad` around."""
    recomputing: bool = False
    """Whether this is the second run of a checkpointed function."""
    checkpointed: bool = False
    """Whether this is inside a checkpointed function that is differentiated."""
    batched_predicate: bool = False
    """Whether a batched predicate decides if this part of the program runs."""
    batched_condition: bool = False
    """Whether this part is a batched predicate: JAX evaluates it for the loop and again in the loop's body."""
    compiled: bool = False
    """Whether a compiler sees which results are unused; otherwise each operation runs alone."""
    data: DataKind = PLAIN
    """The kind of the callback's operands and results."""
    jit_disabled: bool = False
    processes: int = 1
    """How many processes have the devices, each as many as the others."""
    process: int = 0
    """The process for which this world is: each runs the whole program, and its own devices' callbacks alone."""

    @property
    def own_devices(self) -> range:
        """The devices of this world's process."""
        count = self.device_count // self.processes
        return range(self.process * count, (self.process + 1) * count)

    def on_device(self, device: int) -> World:
        return replace(self, device=device, compiled=not self.jit_disabled)

    def on_mesh(self) -> World:
        """One computation over all devices: the world's device is the one that calls back."""
        last = self.callback.device_choice is DeviceChoice.LAST
        return replace(self.on_device(self.device_count - 1 if last else 0), on_whole_mesh=True)

    def in_program(self, batched_predicate: bool = False) -> World:
        """The world inside a part that JAX compiles as a whole: a jitted function, a loop."""
        compiled = self.compiled or not self.jit_disabled
        return replace(self, compiled=compiled, batched_predicate=self.batched_predicate or batched_predicate)

    @property
    def taps_tangents(self) -> bool:
        return self.callback.linear and self.data.plain

    def probe(self, site: str, operand: Value, transposed: bool = False) -> Value:
        """Run the callback under test on `operand` and return its result; `transposed` by the innermost `grad`."""
        callback = self.callback.at(site)
        if refused := self._refused(callback, operand):
            raise RefusalError(refused)
        need = self._need(callback, site)
        if callback.on_every_device and self.on_whole_mesh:
            # The callbacks are equal and pure, so one device may stand for all of a process.
            return replace(self, device=self.own_devices[0], on_whole_mesh=False).probe(site, operand)
        if need is None or (self.recomputing and not callback.recomputed):
            pass
        elif callback.partitioned and self.on_whole_mesh:
            self._emit_shards(callback, site, operand)
        elif callback.batching is Batching.SEQUENTIAL:
            self._emit_elements(callback, site, operand, need)
        else:
            self._emit(callback, site, operand, need, transposed)
        return operand + RETURNED_OFFSET if callback.returns_new_value else operand

    def _refused(self, callback: Callback, operand: Value) -> dict[str, Refusal]:
        refusals = callback.refusals
        meets = {
            "differentiation": refusals.differentiation if operand.perturbed and self.data.differentiable else None,
            "vmap": refusals.vmap if operand.levels and callback.batching is Batching.REFUSED else None,
            "vmap of a predicate": refusals.batched_predicate if self.batched_predicate else None,
            "checkpoint": refusals.checkpoint if self.checkpointed else None,
            "a mesh": refusals.mesh if self.on_whole_mesh and self.device_count > 1 else None,
        }
        return {what: refusal for what, refusal in meets.items() if refusal}

    def _need(self, callback: Callback, site: str) -> Need | None:
        """How often the event must occur, or None if it must not occur."""
        if callback.runs is Runs.ONCE:
            # JAX may evaluate a batched condition several times, and an unordered callback then runs as often.
            return Need.AT_LEAST_ONCE if self.batched_condition and not callback.ordered else Need.ONCE
        if self.backward is not None:
            # The compiler decides which primal values a derivative needs.
            return Need.ANY_NUMBER
        if self.jit_disabled and site in UNUSED_SITES:
            # JAX compiles some parts even without jit, for example a loop with a batched predicate.
            return Need.ANY_NUMBER
        if self.compiled and site in UNUSED_SITES:
            return None
        return Need.AT_LEAST_ONCE

    def _emit(self, callback: Callback, site: str, operand: Value, need: Need, transposed: bool = False) -> None:
        if self.device not in self.own_devices:
            return
        leaves: tuple[Data, ...] = (_float32(operand.data),)
        array = None
        if not self.data.plain:
            leaves = tuple(self.data.operand(operand.data, np))
            if callback.prints:
                (array,) = leaves
                leaves = (np.asarray(printed(callback.function, array)),)
        dims: tuple[int | None, ...] = (0,) * len(leaves)
        if callback.takes_tree:
            sizes = operand.data.shape[: len(operand.levels)]
            constant_shape = {Batching.EXPAND_DIMS: (1,) * len(sizes), Batching.BROADCAST_ALL: sizes}.get(
                callback.batching, ()
            )
            leaves = (_float32(np.full(constant_shape, CONSTANT_OPERAND)), *leaves)
            dims = (None, *dims)
        transforms: Transforms = ()
        if callback.receives_transforms:
            batches: list[tuple[str, dict[str, Any]]] = [("batch", {"batch_dims": dims})] * len(operand.levels)
            if transposed and self.reverse:
                inside = [level for level in operand.levels if level not in self.reverse.outer_levels]
                batches.insert(len(inside), ("transpose", {}))
            transforms = tuple(batches)
        self.history.append(ExpectedEvent(site, self.device, leaves, transforms, need, self.process, array))

    def _emit_elements(self, callback: Callback, site: str, operand: Value, need: Need) -> None:
        # The innermost vmap batches the callback first, and becomes the outermost loop.
        axes = [range(size) for size in operand.data.shape[: len(operand.levels)]]
        for reversed_index in itertools.product(*reversed(axes)):
            element = operand.data[tuple(reversed(reversed_index))]
            self._emit(callback, site, Value.constant(element), need)

    def _emit_shards(self, callback: Callback, site: str, operand: Value) -> None:
        axis = len(operand.levels)
        for device, shard in enumerate(np.split(operand.data, self.device_count, axis)):
            elements = Value(operand.levels, {PRIMAL: shard})
            replace(self, device=device)._emit_elements(callback, site, elements, Need.ONCE)


def _float32(data: Data) -> Data:
    return np.asarray(data, dtype=np.float32)


ModelFunction: TypeAlias = Callable[[World, Value], Value]
