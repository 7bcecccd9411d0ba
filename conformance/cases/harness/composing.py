"""Programs with callbacks of several kinds: the host functions record by name, and the oracle's checkers compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ...model.worlds import ExpectedEvent, Need, Transforms
from ...oracle.checkers import Anomaly, check_barrier, check_results, judge
from ...oracle.history import History
from ...spec.callbacks import RETURNED_OFFSET, Callback, Runs
from ...spec.data import flatten
from ...spec.external_callbacks import callback_named
from .case import Case

ROUNDS = (1, 2)
"""The runs of each round: one alone, and two of which the second does not wait for the first."""

TRANSPOSED: Transforms = (("transpose", {}),)
FLOAT0 = np.zeros((), jax.dtypes.float0)
"""The cotangent of an integer."""


def batched(*dims: int | None) -> Transforms:
    """The entry of one vmap, with an axis for each leaf."""
    return (("batch", {"batch_dims": dims}),)


def ran(name: str, *leaves: Any, device: int = 0, transforms: Transforms = (), need: Need = Need.ONCE) -> ExpectedEvent:
    """An expected run of the callback with this name. Numbers with a point are float32, others int32."""
    return ExpectedEvent(name, device, tuple(map(_array, leaves)), transforms, need)


def _array(leaf: Any) -> Any:
    array = np.asarray(leaf)
    narrow = {"f": np.float32, "i": np.int32}.get(array.dtype.kind)
    return array.astype(narrow) if narrow else array


class Composition:
    """Calls callbacks by kind and name; `check` runs the program and compares."""

    def __init__(self, case: Case, devices: int | None = None) -> None:
        self.case = case.over(case.devices[:devices])
        self._callbacks: dict[str, Callback] = {}

    def __call__(self, kind: str, name: str, *leaves: Any, vmap_method: str | None = None) -> Any:
        """The first leaf, or this plus one if the callback has a result. A print takes one leaf."""
        callback, recorder, implementation = callback_named(kind), self.case.recorder, self.case.implementation
        self._callbacks[name] = callback
        if vmap_method:
            callback = replace(callback, vmap_method=vmap_method)
        if callback.prints:
            return implementation.probe(callback, recorder, self.case.devices)(name, *leaves)

        def host(operand: Any, transforms: Any = ()) -> Any:
            with recorder.callback(name, operand, transforms):
                first = np.asarray(flatten(operand)[0])
                return np.asarray(first + first.dtype.type(RETURNED_OFFSET)) if callback.returns_new_value else None

        if callback.function == "id_tap":
            return implementation.tap(host, leaves)[0]
        result = self.case.apply(host, leaves, leaves[0], by=callback)
        return result if callback.returns_new_value else leaves[0]

    def on_each_device(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Compile a function of one device's row of the operand."""
        if self.case.layout == "pmap":
            return self.case.compile(function)

        def of_shard(rows: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[None], function(rows[0]))

        rows = PartitionSpec("devices")
        # The results of JAX's own callbacks count as equal on all devices, so a loop cannot carry them.
        return jax.jit(jax.shard_map(of_shard, mesh=self.case.mesh, in_specs=rows, out_specs=rows, check_vma=False))

    def check(
        self,
        program: Callable[[Any], Any],
        operand: Any,
        results: Sequence[Any],
        *events: Sequence[ExpectedEvent],
        unordered: Sequence[str] = (),
    ) -> None:
        """Run the program. On each device the events come in this order, except those of `unordered` names.

        Where JAX has a choice, there are several sequences of events, of which one is enough.
        """
        for runs in ROUNDS:
            self.case.forget()
            returned = [program(jnp.asarray(operand, np.float32)) for _ in range(runs)]
            self.case.barrier()
            arrays = [np.asarray(leaf) for run in returned for leaf in jax.tree.leaves(run)]
            judged = [self._judge([*one] * runs, unordered) for one in events]
            self.case.anomalies += min(judged, key=len) + check_results([*map(_array, results)] * runs, arrays)

    def _judge(self, events: Sequence[ExpectedEvent], unordered: Sequence[str]) -> list[Anomaly]:
        history = self.case.recorder.history()
        orders = {name: "" if name in unordered else self._order_of(name) for name in self._callbacks}
        platform = self.case.devices[0].platform
        found: list[Anomaly] = []
        for order in sorted({*orders.values()}):
            expected = [self._needed(event) for event in events if orders.get(event.site, "") == order]
            actual = tuple(event for event in history.events if orders[event.site] == order)
            found += judge(expected, [], History(actual), [], platform, ordered=bool(order))
        # No barrier waits for callbacks that count as pure.
        awaited = tuple(event for event in history.events if self._callbacks[event.site].runs is Runs.ONCE)
        return found + check_barrier(History(awaited, history.barrier_returned))

    def _order_of(self, name: str) -> str:
        """Ordered callbacks have one order in the program, and JAX's own one for each effect."""
        callback, of_jax = self._callbacks[name], getattr(self.case.implementation, "name", "") == "jax"
        effect = callback.function.partition(".")[0] if of_jax else "program"
        return effect if callback.ordered else ""

    def _needed(self, event: ExpectedEvent) -> ExpectedEvent:
        callback = self._callbacks.get(event.site)
        if callback is None or callback.runs is Runs.ONCE or event.need is not Need.ONCE:
            return event
        return replace(event, need=Need.AT_LEAST_ONCE)
