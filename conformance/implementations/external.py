"""How external callbacks are called: the same for every module that offers them with JAX's signatures."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from conformance.callbacks import CONSTANT_OPERAND, Callback, DeviceChoice, Runs
from conformance.history import Recorder
from conformance.implementations.host_functions import PrintedCallbacks, ReturningFunction
from conformance.transforms import Probe


class ExternalCallbacks:
    """The part of an implementation that is about callbacks which JAX has as well."""

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace
        """Where the callbacks are, by `Callback.function`."""

    def probe(self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device]) -> Probe:
        if not callback.parts:
            return self.probe_one(callback, recorder, devices)
        probes = {part.name: self.probe_one(part, recorder, devices) for part in callback.parts}
        return lambda site, value: probes[callback.at(site).name](site, value)

    def probe_one(self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device]) -> Probe:
        """A probe of a callback that is no mixture of several."""

        def print_(site: str, value: jax.Array) -> jax.Array:
            PrintedCallbacks.install(recorder)
            show = self.namespace.debug.print
            show(PrintedCallbacks.FORMAT, what=site, value=value, ordered=callback.ordered)
            return value

        def probe(site: str, value: jax.Array) -> jax.Array:
            operand = {"constant": CONSTANT_OPERAND, "value": value} if callback.takes_tree else value
            function = ReturningFunction(site, recorder, callback.returns_new_value)
            wanted = jax.ShapeDtypeStruct(jnp.shape(value), jnp.float32)
            result = self.invoke(callback, function, operand, wanted, devices)
            return result if callback.returns_new_value else value

        return print_ if callback.function == "debug.print" else probe

    def invoke(
        self,
        callback: Callback,
        function: Callable[[Any], Any],
        operand: Any,
        wanted: Any,
        devices: Sequence[jax.Device],
    ) -> Any:
        """Make the callback run `function` on the operand, and give back its result."""
        call = self._offered(callback)
        options: dict[str, Any] = {}
        if callback.device_choice is DeviceChoice.LAST:
            options["sharding"] = jax.sharding.SingleDeviceSharding(devices[-1])
        if callback.function == "pure_callback":
            return call(function, wanted, operand, vmap_method=callback.vmap_method, **options)
        if callback.function == "io_callback":
            return call(function, wanted, operand, ordered=callback.ordered, **options)
        if callback.function == "debug.callback":
            return call(function, operand, ordered=callback.ordered, partitioned=callback.partitioned)

        options = {"vmap_method": callback.vmap_method, "has_side_effect": callback.runs is Runs.ONCE}
        if callback.aliased:
            options["input_output_aliases"] = {0: 0}
        if callback.function == "buffer_callback":
            return call(_WithContext(_Filling(function, callback.aliased)), wanted, **options)(operand)
        if callback.in_place:
            return call(_Filling(function, callback.aliased), wanted, in_place=True, **options)(operand)
        return call(_OfBuffer(function), wanted, **options)(operand)

    def returning_buffers(self, callback: Callback, operand: Any) -> Any:
        """A buffer callback that returns what it should have written."""
        wanted = jax.ShapeDtypeStruct(jnp.shape(operand), jnp.float32)
        return self._offered(callback)(lambda context, out, buffer: np.array(_array(buffer)), wanted)(operand)

    def _offered(self, callback: Callback) -> Any:
        return operator.attrgetter(callback.function)(self.namespace)


@dataclass(frozen=True)
class _Filling:
    """Writes into the buffer that it is given what a function of arrays returns."""

    function: Callable[[Any], Any]
    aliased: bool

    def __call__(self, out: Any, operand: Any) -> None:
        written = _array(out)
        if self.aliased and _address(written) != _address(_array(operand)):
            raise AssertionError("the result's buffer is not the operand's, though they are to be aliased")
        # A copy: the buffers live no longer than the callback.
        written[...] = self.function(_array(operand).copy())


@dataclass(frozen=True)
class _WithContext:
    filling: _Filling

    def __call__(self, context: Any, out: Any, operand: Any) -> None:
        self.filling(out, operand)


@dataclass(frozen=True)
class _OfBuffer:
    """Returns to a callback of buffers what a function of arrays returns."""

    function: Callable[[Any], Any]

    def __call__(self, operand: Any) -> Any:
        return self.function(_array(operand).copy())


def _array(buffer: Any) -> Any:
    """A view of a buffer, by the protocols it has."""
    return np.asarray(buffer) if hasattr(buffer, "__array__") else np.from_dlpack(buffer)


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
