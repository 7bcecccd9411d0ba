"""The semantic model: what a program with callbacks must do, computed without JAX.

A `World` is everything a callback's behaviour depends on at one point of a program: which device
it is on, which vmaps and differentiations surround it, and what has happened so far. Transforms
interpret programs in worlds (their `model_face`); `World.probe` is where a callback happens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from conformance.callbacks import (
    CONSTANT_OPERAND,
    RETURNED_OFFSET,
    Batching,
    Callback,
    DeviceChoice,
)
from conformance.values import Data, Value

Transforms: TypeAlias = tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class ExpectedEvent:
    """One callback that must happen: where in the program, on which device, with what."""

    site: str
    device: int
    leaves: tuple[Data, ...]
    transforms: Transforms = ()


class RefusalError(Exception):
    """The program must be refused: these transforms reach a callback that does not support them."""

    def __init__(self, transforms: Sequence[str]) -> None:
        super().__init__(transforms)
        self.transforms = tuple(transforms)


BackwardStep: TypeAlias = Callable[[Value], None]
"""What the backward pass does for one part of the forward pass, given the differentiated result."""


@dataclass(frozen=True)
class World:
    callback: Callback
    device_count: int
    history: list[ExpectedEvent] = field(default_factory=list)
    device: int = 0
    backward: list[BackwardStep] | None = None
    """Steps of the backward pass in the order of the forward pass; None outside of `grad`."""
    recomputing: bool = False
    """Whether this is the second run of a checkpointed function."""

    def on_device(self, device: int) -> World:
        return replace(self, device=device)

    def on_mesh(self) -> World:
        """One computation over all devices: a single device speaks for all of them."""
        last = self.callback.device_choice is DeviceChoice.LAST
        return self.on_device(self.device_count - 1 if last else 0)

    def probe(self, site: str, operand: Value) -> Value:
        """Run the callback under test on `operand` and return what it gives back."""
        refused = []
        if operand.perturbed and not self.callback.differentiable:
            refused.append("differentiation")
        if operand.levels and self.callback.batching is Batching.REFUSED:
            refused.append("vmap")
        if refused:
            raise RefusalError(refused)
        if self.recomputing and not self.callback.recomputed:
            pass
        elif self.callback.batching is Batching.SEQUENTIAL:
            self._emit_lanes(site, operand)
        else:
            self._emit(site, operand)
        return operand + RETURNED_OFFSET if self.callback.returns_new_value else operand

    def _emit(self, site: str, operand: Value) -> None:
        leaves: tuple[Data, ...] = (_float32(operand.data),)
        dims: tuple[int | None, ...] = (0,)
        if self.callback.takes_tree:
            sizes = operand.data.shape[: len(operand.levels)]
            constant_shape = {
                Batching.EXPAND_DIMS: (1,) * len(sizes),
                Batching.BROADCAST_ALL: sizes,
            }.get(self.callback.batching, ())
            leaves = (_float32(np.full(constant_shape, CONSTANT_OPERAND)), *leaves)
            dims = (None, 0)
        transforms: Transforms = ()
        if self.callback.receives_transforms:
            transforms = (("batch", {"batch_dims": dims}),) * len(operand.levels)
        self.history.append(ExpectedEvent(site, self.device, leaves, transforms))

    def _emit_lanes(self, site: str, operand: Value) -> None:
        # The innermost vmap meets the callback first and makes the outermost loop.
        axes = [range(size) for size in operand.data.shape[: len(operand.levels)]]
        for reversed_lane in itertools.product(*reversed(axes)):
            lane = operand.data[tuple(reversed(reversed_lane))]
            self._emit(site, Value.constant(lane))


def _float32(data: Data) -> Data:
    return np.asarray(data, dtype=np.float32)


ModelFunction: TypeAlias = Callable[[World, Value], Value]
