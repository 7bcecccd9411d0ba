"""Builds the programs of a soak with JAX, and lets their callbacks record."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .record import Record, Run
from .specs import CALLBACKS, CONDITION_KIND, DEVICE_INDEX, SMALL, Form, Layout, ProgramSpec, Shape, base_code

AXIS = "devices"


class HostFunction:
    """The function of one callback of one program."""

    alive: ClassVar[weakref.WeakSet[HostFunction]] = weakref.WeakSet()
    """All of them: a program that is dropped takes its functions with it."""

    def __init__(self, record: Record, spec: ProgramSpec, place: int) -> None:
        self._record = record
        self._spec = spec
        self._site = f"place {place}"
        HostFunction.alive.add(self)

    def __call__(self, operand: Any, *_: Any, device: Any = None) -> Any:
        code, data = operand if isinstance(operand, tuple) else (operand, None)
        return self._record.saw(self._site, self._spec, int(code), data, None if device is None else device.id)


class Printed:
    """A stream for `id_print` and, as the standard output, for `debug.print`: what is printed are codes."""

    _WORDS = re.compile(r"soak: (\d+)|what: soak\s+(\d+)")

    def __init__(self, record: Record) -> None:
        self._record = record

    def write(self, text: str) -> int:
        found = self._WORDS.findall(text)
        if len(found) != 1 and text:
            self._record.note("wrong operand", f"a print wrote {text[:200]!r}, expected one code")
        for printed in found:
            self._record.saw("print", None, int(printed[0] or printed[1]))
        return len(text)

    def flush(self) -> None:
        """There is nothing to flush."""


class Program:
    """A compiled program, or what runs outside of jit."""

    def __init__(self, spec: ProgramSpec, record: Record, implementation: Any, devices: Sequence[jax.Device]) -> None:
        self.spec = spec
        self._record = record
        self._implementation = implementation
        self._devices = devices
        self.functions = [HostFunction(record, spec, place) for place in range(len(spec.kinds) + 1)]
        self._mesh = jax.sharding.Mesh(np.array(devices), (AXIS,))
        self._compiled = self._compile()

    def shape(self, trips: int) -> Shape:
        """The steps of a run with this number of rounds; only a `while_loop` receives one."""
        wanted = (
            min(trips, self.spec.trips) if self.spec.form in (Form.WHILE, Form.WHILE_CONDITION) else self.spec.trips
        )
        return Shape(self.spec, wanted)

    @property
    def devices(self) -> tuple[int, ...]:
        """The numbers of the devices that call back."""
        if self.spec.spread:
            return tuple(device.id for device in self._devices)
        return (self._devices[self.spec.device].id,)

    def __call__(self, run: Run) -> Any:
        """Dispatch it. The result is an array, of an element a device."""
        trips = np.int32(run.shape.trips)
        codes = np.asarray([base_code(run.number, slot) for slot in range(len(run.devices))], np.int32)
        if self.spec.layout in (Layout.ONE_DEVICE, Layout.EAGER):
            operands = jax.device_put((codes[0], trips), self._devices[self.spec.device])
            return self._compiled(*operands)
        if self.spec.layout == Layout.MESH:
            return self._compiled(codes[0], trips)
        return self._compiled(codes, np.full(len(codes), trips))

    def tap(self, run: Run) -> None:
        """Tap once outside of programs, without an operation of JAX."""
        self._emit("id_tap", 0, np.int32(base_code(run.number, 0)))

    def _compile(self) -> Callable[..., Any]:
        layout = self.spec.layout
        if layout == Layout.EAGER:
            return self._main
        if layout == Layout.ONE_DEVICE:
            return jax.jit(self._main)
        if layout == Layout.PMAP:
            return jax.pmap(self._main, axis_name=AXIS, devices=self._devices)
        if layout == Layout.MESH:
            everywhere = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
            return jax.jit(self._main, in_shardings=everywhere, out_shardings=everywhere)
        spread = jax.sharding.PartitionSpec(AXIS)

        def on_shard(codes: jax.Array, trips: jax.Array) -> jax.Array:
            return self._main(codes[0], trips[0])[None]

        return jax.jit(
            jax.shard_map(on_shard, mesh=self._mesh, in_specs=(spread, spread), out_specs=spread, check_vma=False)
        )

    def _main(self, code: jax.Array, trips: jax.Array) -> jax.Array:
        """The program: its result is the sum of what its callbacks return."""
        spec = self.spec
        stride = np.int32(spec.stride)

        def step(trip: Any, total: Any) -> Any:
            return self._body(code + trip * stride, trip, total)

        zero = jnp.zeros_like(code)
        if spec.form == Form.STRAIGHT:
            return step(np.int32(0), zero)
        if spec.form in (Form.SCAN, Form.BRANCHES):
            rounds = jnp.arange(spec.trips, dtype=np.int32)
            return jax.lax.scan(lambda total, trip: (step(trip, total), None), zero, rounds)[0]
        if spec.form == Form.FORI:
            return jax.lax.fori_loop(np.int32(0), np.int32(spec.trips), step, zero)

        def goes_on(carry: Any) -> Any:
            trip, _ = carry
            if spec.form == Form.WHILE_CONDITION:
                self._emit(CONDITION_KIND, len(spec.kinds), code + trip * stride)
            return trip < trips

        first = (jnp.zeros_like(trips), zero)
        return jax.lax.while_loop(goes_on, lambda carry: (carry[0] + 1, step(*carry)), first)[1]

    def _body(self, code: Any, trip: Any, total: Any) -> Any:
        """One round of the loop."""
        places = range(len(self.spec.kinds))
        code = code + np.int32(self.spec.form == Form.WHILE_CONDITION)
        if self.spec.form == Form.BRANCHES:
            branches = (functools.partial(self._callbacks, order) for order in (places, places[::-1]))
            return jax.lax.cond(trip % 2 == 0, *branches, code, total)
        return self._callbacks(places, code, total)

    def _callbacks(self, places: Sequence[int], code: Any, total: Any) -> Any:
        for step, place in enumerate(places):
            returned = self._emit(self.spec.kinds[place], place, code + np.int32(step))
            total = total if returned is None else total + returned
        return total

    def _emit(self, name: str, place: int, code: Any) -> Any:
        """One callback; returns its result, if it has one."""
        callback, spec, library = CALLBACKS[name], self.spec, self._implementation.namespace
        operand: Any = code
        if spec.size and not callback.prints:
            value = (code & 1 if spec.dtype == "bool" else code & SMALL).astype(spec.dtype)
            operand = code, jnp.broadcast_to(value, (spec.size,))
        function = self.functions[place]
        index = {"device_index": spec.device} if spec.layout == Layout.MESH and name in DEVICE_INDEX else {}
        if name in ("id_tap", "id_tap_device"):
            library.id_tap(function, operand, tap_with_device=name == "id_tap_device", **index)
            return None
        if name == "id_print":
            library.id_print(code, what="soak", output_stream=Printed(self._record), **index)
            return None
        if name.startswith("debug_print"):
            library.debug.print("soak: {code}", code=code, ordered=callback.ordered)
            return None
        wanted = jax.ShapeDtypeStruct((), np.int32) if callback.returns_new_value else None
        if name == "call":
            return library.call(function, operand, result_shape=wanted, **index)
        result = self._implementation.invoke(callback, function, operand, wanted, self._devices)
        return result if callback.returns_new_value else None
