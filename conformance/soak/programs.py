"""Builds the programs of a soak with JAX, and lets their callbacks record."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .record import Record, Run
from .specs import CALLBACKS, CONDITION_KIND, SMALL, Form, Layout, ProgramSpec, Shape, base_code, names_its_device

AXIS = "devices"


class HostFunction:
    def __init__(self, record: Record, spec: ProgramSpec, place: int) -> None:
        self._record, self._spec, self._site = record, spec, f"place {place}"

    def __call__(self, operand: Any, *_: Any, device: Any = None) -> Any:
        code, data = operand if isinstance(operand, tuple) else (operand, None)
        return self._record.saw(self._site, self._spec, int(code), data, None if device is None else device.id)


class Printed(io.TextIOBase):
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


class Program:
    """A compiled program, or what runs outside of jit."""

    def __init__(self, spec: ProgramSpec, record: Record, implementation: Any, devices: Sequence[jax.Device]) -> None:
        self.spec = spec
        self._record, self._implementation, self._devices = record, implementation, devices
        self.functions = [HostFunction(record, spec, place) for place in range(len(spec.kinds) + 1)]
        self._compiled: Any = self._compile()

    def shape(self, trips: int) -> Shape:
        """The steps of a run with this number of rounds; only a `while_loop` receives one."""
        receives = self.spec.form in (Form.WHILE, Form.WHILE_CONDITION)
        return Shape(self.spec, min(trips, self.spec.trips) if receives else self.spec.trips)

    @property
    def on_one_device(self) -> bool:
        return self.spec.layout in (Layout.ONE_DEVICE, Layout.EAGER)

    @property
    def devices(self) -> tuple[int, ...]:
        """The numbers of the devices that call back."""
        return tuple(each.id for each in (self._devices if self.spec.spread else [self._devices[self.spec.device]]))

    def compile_ahead(self) -> None:
        """Compile it in this thread: JAX 0.12 keeps 1.4 MB for each living thread that has compiled."""
        self._compiled = self._compiled.lower(*self._operands(0, self.spec.trips)).compile()

    def __call__(self, run: Run) -> Any:
        """Dispatch it. The result is an array, of an element a device."""
        return self._compiled(*self._operands(run.number, run.shape.trips))

    def _operands(self, number: int, trips: int) -> Any:
        codes = np.asarray([base_code(number, slot) for slot in range(len(self.devices))], np.int32)
        if self.spec.spread:
            return codes, np.full(len(codes), np.int32(trips))
        operands = codes[0], np.int32(trips)
        return jax.device_put(operands, self._devices[self.spec.device]) if self.on_one_device else operands

    def tap(self, run: Run) -> None:
        """Tap once outside of programs, without an operation of JAX."""
        self._emit("id_tap", 0, np.int32(base_code(run.number, 0)))

    def _compile(self) -> Callable[..., Any]:
        layout, mesh = self.spec.layout, jax.sharding.Mesh(np.array(self._devices), (AXIS,))
        if layout == Layout.EAGER:
            return self._main
        if layout == Layout.PMAP:
            return jax.pmap(self._main, axis_name=AXIS, devices=self._devices)
        if layout == Layout.SHARD_MAP:
            rows = PartitionSpec(AXIS)
            on_shard = lambda codes, trips: self._main(codes[0], trips[0])[None]
            return jax.jit(jax.shard_map(on_shard, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
        everywhere = NamedSharding(mesh, PartitionSpec()) if layout == Layout.MESH else None
        return jax.jit(self._main, in_shardings=everywhere, out_shardings=everywhere)

    def _main(self, code: Any, trips: Any) -> Any:
        """The program: its result is the sum of what its callbacks return."""
        spec, zero = self.spec, jnp.zeros_like(code)
        in_condition = spec.form == Form.WHILE_CONDITION
        stride = np.int32(len(spec.kinds) + in_condition)

        def step(trip: Any, total: Any) -> Any:
            """One round of the loop."""
            first, places = code + trip * stride + np.int32(in_condition), [*range(len(spec.kinds))]
            if spec.form != Form.BRANCHES:
                return self._callbacks(places, first, total)
            branches = (functools.partial(self._callbacks, order) for order in (places, places[::-1]))
            return jax.lax.cond(trip % 2 == 0, *branches, first, total)

        def goes_on(carry: Any) -> Any:
            if in_condition:
                self._emit(CONDITION_KIND, len(spec.kinds), code + carry[0] * stride)
            return carry[0] < trips

        if spec.form == Form.STRAIGHT:
            return step(np.int32(0), zero)
        if spec.form in (Form.SCAN, Form.BRANCHES):
            rounds = jnp.arange(spec.trips, dtype=np.int32)
            return jax.lax.scan(lambda total, trip: (step(trip, total), None), zero, rounds)[0]
        first = (jnp.zeros_like(trips), zero)
        return jax.lax.while_loop(goes_on, lambda carry: (carry[0] + 1, step(*carry)), first)[1]

    def _callbacks(self, places: Sequence[int], code: Any, total: Any) -> Any:
        for step, place in enumerate(places):
            returned = self._emit(self.spec.kinds[place], place, code + np.int32(step))
            total = total if returned is None else total + returned
        return total

    def _emit(self, name: str, place: int, code: Any) -> Any:
        """One callback; returns its result, if it has one."""
        callback, spec, function = CALLBACKS[name], self.spec, self.functions[place]
        library = self._implementation.namespace
        index = {"device_index": spec.device} if spec.layout == Layout.MESH and names_its_device(name) else {}
        if name == "id_print":
            library.id_print(code, what="soak", output_stream=Printed(self._record), **index)
            return None
        if callback.prints:
            library.debug.print("soak: {code}", code=code, **callback.options)
            return None
        operand: Any = code
        if spec.size:
            value = (code & 1 if spec.dtype == "bool" else code & SMALL).astype(spec.dtype)
            operand = code, jnp.broadcast_to(value, (spec.size,))
        if callback.function == "id_tap":
            library.id_tap(function, operand, **callback.options, **index)
            return None
        wanted = jax.ShapeDtypeStruct((), np.int32) if callback.returns_new_value else None
        if name == "call":
            return library.call(function, operand, result_shape=wanted, **index)
        result = self._implementation.invoke(callback, function, operand, wanted, self._devices)
        return result if callback.returns_new_value else None
