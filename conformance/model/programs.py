"""Programs: a small base function with callbacks, under a composition of transforms."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax

from ..spec.callbacks import Callback, DeviceChoice
from ..spec.data import PLAIN, DataKind
from .transforms import TRANSFORMS, JaxFunction, Setting, Transform
from .values import Data, Value
from .worlds import ExpectedEvent, ModelFunction, World

INPUTS = (3.0, 68.5)
"""Every program runs on each of these numbers in turn, without a barrier between them, since order must
also hold from one computation to the next. One number is odd and one is not, so predicates have both
values. The half makes the operands of the two runs differ for all offsets: offsets are whole numbers,
so two of the three polynomials below have other remainders for the second number, and the third is
x (2x + 1) only for whole x."""

EXACT = 2.0**23
"""Multiples of a half below this number are exact in float32."""


def strides(transforms: Sequence[Transform]) -> tuple[float, ...]:
    """The stride of each transform: its offsets are multiples of it.

    A stride is larger than the sum of all offsets of the outer transforms, so that no two callbacks of
    a program see equal operands. It is odd, so that predicates, which test whether a number is odd,
    differ between batch elements at every depth.
    """
    return tuple(
        float(stride) for stride in itertools.accumulate((t.radix for t in transforms), operator.mul, initial=1)
    )


def base_function(probe: Callable[[str, Any], Any], x: Any) -> Any:
    """Three callbacks in a small polynomial. It runs on JAX arrays, and on the model's values.

    The numbers stay small integers, exact in float32, in every derivative and sum. The program does not
    use the second callback's result: the callback must run all the same, and in order.
    """
    y = probe("first", x * 2.0 + 1.0)
    probe("unused", x * 4.0 + 3.0)
    return probe("last", y * x)


@dataclass(frozen=True)
class Program:
    """A composition of transforms, the outermost first."""

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return ".".join(self.names)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return tuple(TRANSFORMS[name] for name in self.names)

    @property
    def promises(self) -> tuple[str, ...]:
        return tuple(sorted({p for transform in self.transforms for p in transform.promises}))

    @property
    def exact(self) -> bool:
        """Whether all its numbers stay exact in float32, by a rough upper bound."""
        count = prod(transform.radix for transform in self.transforms)
        largest = INPUTS[-1] + count
        return 3 * largest**2 * count < EXACT

    def jax_function(self, setting: Setting) -> JaxFunction:
        def base(x: jax.Array) -> jax.Array:
            return base_function(setting.probe, x)

        function: JaxFunction = base
        for transform, stride in self._from_inside():
            function = transform.jax_face(function, setting, stride)
        return function

    def _from_inside(self) -> list[tuple[Transform, float]]:
        return list(zip(self.transforms, strides(self.transforms), strict=False))[::-1]

    def prediction(
        self,
        callback: Callback,
        device_count: int,
        inputs: Sequence[float] = INPUTS,
        data: DataKind = PLAIN,
        jit_disabled: bool = False,
        processes: int = 1,
        process: int = 0,
    ) -> Prediction:
        """The right callbacks and results in one of the processes that have the devices.

        Raises `RefusalError` if the program must be refused.
        """

        def base(world: World, x: Value) -> Value:
            return base_function(world.probe, x)

        function: ModelFunction = base
        for transform, stride in self._from_inside():
            function = transform.model_face(function, stride)
        events: list[ExpectedEvent] = []
        results = []
        around = World(
            callback, device_count, events, data=data, jit_disabled=jit_disabled, processes=processes, process=process
        )
        for number in inputs:
            world = replace(around, device=self._device_outside(around))
            results.append(function(world, Value.constant(number)).data)
        return Prediction(tuple(events), tuple(results))

    def _device_outside(self, world: World) -> int:
        """The device of callbacks outside of a computation over all devices."""
        if world.callback.device_choice is DeviceChoice.LAST:
            # Such a callback is tried only under a mesh. Callbacks outside that program have operands from its device.
            return world.device_count - 1
        # What a computation over all processes returns is an array of all of them, and calls back in one of them. An
        # array of one process, or a callback of which every process has a part, calls back in every process.
        joint = {"pjit", "shard_map"} & {*self.names} and not world.callback.partitioned
        return 0 if joint else world.own_devices[0]


@dataclass(frozen=True)
class Prediction:
    events: tuple[ExpectedEvent, ...]
    results: tuple[Data, ...]


DOCUMENTED_TRIPLES = (
    ("jit", "grad", "remat"),
    ("grad", "scan", "remat"),
    ("grad", "remat", "scan"),
    ("grad", "remat", "remat"),
    ("grad", "remat", "cond"),
    ("grad", "scan", "custom_vjp"),
    ("grad", "remat", "custom_vjp"),
    ("grad", "remat", "custom_jvp"),
    ("vmap", "grad", "remat"),
    ("vmap", "vmap", "while_body"),
    ("jit", "vmap", "while_cond"),
    ("jit", "vmap", "cond"),
    ("pmap", "vmap", "grad"),
    ("jvp", "scan", "detached"),
    ("grad", "scan", "detached"),
    ("grad", "fori", "detached"),
    ("grad", "cond", "detached"),
    ("grad", "remat", "detached"),
    ("pmap", "grad", "remat"),
    ("grad", "pmap", "scan"),
    ("jit", "pmap", "cond"),
    ("shard_map", "scan", "cond"),
    ("pjit", "scan", "cond"),
    ("pjit", "vmap", "scan"),
)
"""Compositions of three transforms whose rules interact: recomputation inside loops, nested batching
under data-dependent control flow, differentiation across devices."""


def all_programs() -> tuple[Program, ...]:
    """Every transform alone, every ordered pair, and the chosen triples.

    `eager` is the absence of a transform: a composition with it is nothing new, so it only stands alone.
    """
    composable = [name for name in TRANSFORMS if name != "eager"]
    singles = [(name,) for name in TRANSFORMS]
    pairs = list(itertools.product(composable, repeat=2))
    return tuple(Program(names) for names in (*singles, *pairs, *DOCUMENTED_TRIPLES))
