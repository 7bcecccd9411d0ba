"""The computations of the cases, in each layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...implementations import Implementation
from ...spec.callbacks import Callback
from ...spec.jax_versions import shard_map
from .prints import PrintingTo, format_for

WIDTH = 3

Function: TypeAlias = Callable[[Any], Any]


class Bench:
    """One layout of a computation over the devices of the topology."""

    def __init__(self, implementation: Implementation, layout: str, devices: Sequence[jax.Device]) -> None:
        self.implementation = implementation
        self.layout = layout
        self.devices = devices
        self.mesh = Mesh(np.asarray(devices), ("devices",))
        self._printed: list[Function] = []

    @property
    def operand(self) -> Any:
        rows = 1 if self.layout == "jit" else len(self.devices)
        operand = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
        return operand[0] if self.layout == "jit" else operand

    @property
    def callback_shape(self) -> tuple[int, ...]:
        """The shape of the operand as one callback sees it."""
        return {
            "jit": (WIDTH,),
            "pmap": (WIDTH,),
            "pjit": (len(self.devices), WIDTH),
            "shard_map": (1, WIDTH),
        }[self.layout]

    @property
    def split(self) -> NamedSharding:
        """A sharding with a row of the operand on each device."""
        return NamedSharding(self.mesh, PartitionSpec("devices"))

    @property
    def callbacks_per_run(self) -> int:
        return len(self.devices) if self.layout in ("pmap", "shard_map") else 1

    def compile(self, function: Function) -> Function:
        by_device = PartitionSpec("devices")
        if self.layout == "jit":
            return jax.jit(function)
        if self.layout == "pmap":
            return jax.pmap(function, axis_name="devices", devices=self.devices)
        if self.layout == "pjit":
            return jax.jit(function, in_shardings=self.split, out_shardings=self.split)
        mapped = shard_map(function, mesh=self.mesh, in_specs=by_device, out_specs=by_device)
        return jax.jit(mapped)

    def invoke(self, callback: Callback, host: Function, x: Any, wanted: Any = None) -> Any:
        """The result of an external callback on `x`: like `wanted`, or of the type of `x`, or `x` itself."""
        wanted = jax.ShapeDtypeStruct(jnp.shape(x), np.float32) if wanted is None else wanted
        result = self.implementation.invoke(callback, host, x, wanted, self.devices)
        return result if callback.returns_new_value else x

    def invoking(self, callback: Callback, host: Function) -> Function:
        """A compiled computation with an external callback of `host`."""
        return self.compile(lambda x: self.invoke(callback, host, x))

    def apply(self, callback: Callback, host: Function, x: Any, wanted: Any = None) -> Any:
        """The result of a callback of any kind on `x`: like `wanted`, or of the type of `x`, or `x` itself."""
        if callback.function == "id_tap":
            return self.implementation.tap(lambda operand, transforms: host(operand), x)
        if callback.function == "call":
            wanted = jax.ShapeDtypeStruct(jnp.shape(x), np.float32) if wanted is None else wanted
            options = {} if callback.vmap_method is None else {"vmap_method": callback.vmap_method}
            return self.implementation.call(host, x, wanted, **options)
        if callback.function == "id_print":
            self.implementation.print_labelled(x, output_stream=PrintingTo(host))
            return x
        if callback.function == "debug.print":
            self._printed.append(host)
            self.implementation.print_as(format_for(host), x=x, ordered=callback.ordered)
            return x
        return self.invoke(callback, host, x, wanted)

    def applying(self, callback: Callback, host: Function) -> Function:
        """A compiled computation with a callback of any kind."""
        return self.compile(lambda x: self.apply(callback, host, x))

    def expected(self, callback: Callback, operand: Any) -> Any:
        """The result of such a computation if the host function adds one."""
        return operand + np.float32(1) if callback.returns_new_value else operand

    def calling(self, host: Function, dtype: Any = np.float32, shape: Any = None) -> Function:
        """A compiled computation that calls `host` on its operand."""

        def computation(x: Any) -> Any:
            wanted = jax.ShapeDtypeStruct(jnp.shape(x) if shape is None else shape, dtype)
            return self.implementation.call(host, x, wanted)

        return self.compile(computation)
