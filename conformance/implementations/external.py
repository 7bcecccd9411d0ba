"""Calls external callbacks: the same for every module that offers them with JAX's signatures."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..model.transforms import Probe
from ..oracle.history import Recorder
from ..spec.callbacks import Callback, DeviceChoice
from ..spec.data import PLAIN, DataKind
from .host_functions import PrintedCallbacks
from .payloads import ProgramFunction, payload_of


class ExternalCallbacks:
    """The part of an implementation for callbacks that JAX has, too."""

    name: str = "the implementation"
    """The name in messages. Processes load it by the path that `path_of` returns."""
    base: str | None
    """With "hostcb" or "jax", it is that implementation with something around it: see `base_of`."""
    callback_exception: type[Exception]
    """What the barrier raises for failed callbacks."""
    barrier: Callable[[], None]

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace
        """The object that has the callbacks, under the names in `Callback.function`."""

    def probe(
        self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device], data: DataKind = PLAIN
    ) -> Probe:
        """The callback as a function of site and operand, whose events `recorder` records."""
        if not callback.parts:
            return self.probe_one(callback, recorder, devices, data)
        probes = {part.name: self.probe_one(part, recorder, devices, data) for part in callback.parts}
        return lambda site, value: probes[callback.at(site).name](site, value)

    def probe_one(self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device], data: DataKind) -> Probe:
        """A probe of a callback that is not a mixture."""
        payload = payload_of(callback, data)

        def print_(site: str, value: jax.Array) -> jax.Array:
            PrintedCallbacks.install(recorder, payload.parse)
            self.print_as(PrintedCallbacks.FORMAT, what=site, value=payload.operand(value), **callback.options)
            return value

        def probe(site: str, value: jax.Array) -> jax.Array:
            operand, function = payload.operand(value), ProgramFunction(site, recorder, payload)
            result = self.invoke(callback, function, operand, payload.wanted(value), devices, payload.spread)
            return payload.received(value, result) if callback.returns_new_value else value

        return print_ if callback.function == "debug.print" else probe

    def invoke(
        self,
        callback: Callback,
        function: Callable[[Any], Any],
        operand: Any,
        wanted: Any,
        devices: Sequence[jax.Device],
        spread: bool = False,
    ) -> Any:
        """Let the callback run `function` on the operand, or on its parts, and return the result."""
        operands = operand if spread else (operand,)
        call = functools.partial(self._offered(callback), **callback.options)
        if callback.device_choice is DeviceChoice.LAST:
            call = functools.partial(call, sharding=jax.sharding.SingleDeviceSharding(devices[-1]))
        if callback.function == "debug.callback":
            return call(function, *operands)
        if not callback.on_every_device:
            return call(function, wanted, *operands)
        return call(_OfBuffers(function, callback), wanted)(*operands)

    def returning_buffers(self, callback: Callback, operand: Any) -> Any:
        """A buffer callback that wrongly returns its result instead of writing it."""
        wanted = jax.ShapeDtypeStruct(jnp.shape(operand), jnp.float32)
        return self._offered(callback)(lambda context, out, buffer: np.array(_array(buffer)), wanted)(operand)

    def print_as(self, text: str, /, *args: Any, **kwargs: Any) -> None:
        self.namespace.debug.print(text, *args, **kwargs)

    def with_buffer(self, callback: Callback, look: Callable[[Any], Any], operand: Any) -> Any:
        """The operand plus one, by a buffer callback that passes the operand's buffer to `look`."""
        wanted = jax.ShapeDtypeStruct(jnp.shape(operand), jnp.float32)

        # As users convert it: `_array` has not been misled by a view that was kept. JAX 0.12 makes no copy of a buffer.
        convert = np.asarray if callback.function == "buffer_callback" else np.array

        def answer(buffer: Any) -> Any:
            look(buffer)
            return convert(buffer) + np.float32(1)

        return self._offered(callback)(_OfBuffers(answer, callback, copies=False), wanted, **callback.options)(operand)

    def lacks(self, callback: Callback) -> str | None:
        """The function or the option of a callback that the namespace lacks."""
        for one in callback.parts or (callback,):
            try:
                parameters = inspect.signature(self._offered(one)).parameters
            except AttributeError:
                return one.function
            if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
                continue
            last = ["sharding"] if one.device_choice is DeviceChoice.LAST else []
            if missing := [option for option in (*one.options, *last) if option not in parameters]:
                return f"{one.function}({missing[0]}=...)"
        return None

    def print_labelled(self, operand: Any, **labels: Any) -> Any:
        raise NotImplementedError(f"{self.name} has no id_print")

    def tap(self, function: Any, operand: Any) -> Any:
        raise NotImplementedError(f"{self.name} has no taps")

    def call(self, function: Any, operand: Any, result_shape: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{self.name} has no calls but pure_callback and io_callback")

    def _offered(self, callback: Callback) -> Any:
        return operator.attrgetter(callback.function)(self.namespace)


@dataclass(frozen=True)
class _OfBuffers:
    """Lets a buffer callback run a function of arrays: its result is returned, or written into the result's buffer."""

    function: Callable[..., Any]
    callback: Callback
    copies: bool = True

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def __call__(self, *given: Any) -> Any:
        if not self.callback.in_place:
            return self.function(*self._arrays(given))
        out, *operands = given[self.callback.function == "buffer_callback" :]
        written = [_array(buffer) for buffer in jax.tree.leaves(out)]
        if self.callback.aliased and _address(written[0]) != _address(_array(jax.tree.leaves(operands)[0])):
            raise AssertionError("the result's buffer is not the operand's, though they are to be aliased")
        results = jax.tree.leaves(self.function(*self._arrays(operands)))
        for array, result in zip(written, results, strict=True):
            array[...] = result
        return None

    def _arrays(self, operands: Any) -> Any:
        """Copies of buffers as arrays, since a buffer is valid only during the callback."""
        return jax.tree.map(lambda buffer: _array(buffer).copy(), operands) if self.copies else operands


def _array(buffer: Any) -> Any:
    """A view of a buffer, by a protocol that the buffer supports."""
    return np.asarray(buffer) if hasattr(buffer, "__array__") else np.from_dlpack(buffer)


def _address(array: Any) -> int:
    return array.__array_interface__["data"][0]
