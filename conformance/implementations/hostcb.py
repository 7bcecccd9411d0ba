"""hostcb, through its public names only."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hostcb
from conformance.callbacks import CONSTANT_OPERAND, RETURNED_OFFSET, Callback, DeviceChoice
from conformance.history import Recorder
from conformance.transforms import Probe

# Host functions are frozen dataclasses, so that equal ones make equal primitives and the programs
# of a worker share what JAX compiled for them.


@dataclass(frozen=True)
class _TapFunction:
    site: str
    recorder: Recorder

    def __call__(self, operand: Any, transforms: Any, device: Any = None) -> None:
        with self.recorder.callback(self.site, operand, transforms, device):
            pass


@dataclass(frozen=True)
class _CallFunction:
    site: str
    recorder: Recorder
    returns_new_value: bool

    def __call__(self, operand: Any, device: Any = None) -> Any:
        with self.recorder.callback(self.site, operand, (), device):
            if not self.returns_new_value:
                return None
            value = operand["value"] if isinstance(operand, dict) else operand
            # NumPy makes a scalar of `value + 1` for a scalar array; the contract wants an array.
            return np.asarray(value + np.float32(RETURNED_OFFSET))


@dataclass(frozen=True)
class _PrintStream:
    """Reads back what id_print writes."""

    recorder: Recorder

    def write(self, text: str) -> None:
        heading, _, body = text.partition("\n")
        transforms = re.search(r"transforms: (\[.*\])", heading)
        site = re.search(r"what: (\w+)", heading)
        with self.recorder.callback(
            site.group(1) if site else f"unlabelled print {text!r}",
            _parse_array(body),
            tuple(ast.literal_eval(transforms.group(1))) if transforms else (),
        ):
            pass


def _parse_array(text: str) -> Any:
    """The float32 array that `numpy.array2string` wrote."""
    with_commas = re.sub(r"(?<=[\d.\]])\s+(?=[-\d\[])", ", ", text.strip())
    return np.asarray(ast.literal_eval(with_commas), dtype=np.float32)


class Hostcb:
    name = "hostcb"
    callback_exception: type[Exception] = hostcb.CallbackException

    def probe(self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device]) -> Probe:
        device_index = len(devices) - 1 if callback.device_choice is DeviceChoice.LAST else 0

        def operand_of(value: jax.Array) -> Any:
            return {"constant": CONSTANT_OPERAND, "value": value} if callback.takes_tree else value

        def tap(site: str, value: jax.Array) -> jax.Array:
            options: dict[str, Any] = {}
            if callback.receives_device:
                options["tap_with_device"] = True
            if callback.returns_new_value:
                options["result"] = value + np.float32(RETURNED_OFFSET)
            tapped = hostcb.id_tap(
                _TapFunction(site, recorder),
                operand_of(value),
                device_index=device_index,
                **options,
            )
            return tapped["value"] if callback.takes_tree else tapped

        def print_(site: str, value: jax.Array) -> jax.Array:
            stream = _PrintStream(recorder)
            return hostcb.id_print(value, what=site, output_stream=stream)

        def call(site: str, value: jax.Array) -> jax.Array:
            options: dict[str, Any] = {}
            if callback.vmap_method is not None:
                options["vmap_method"] = callback.vmap_method
            if callback.receives_device:
                options["call_with_device"] = True
            result = hostcb.call(
                _CallFunction(site, recorder, callback.returns_new_value),
                operand_of(value),
                result_shape=jax.ShapeDtypeStruct(jnp.shape(value), jnp.float32)
                if callback.returns_new_value
                else None,
                **options,
            )
            return result if callback.returns_new_value else value

        if callback.name == "id_print":
            return print_
        return tap if callback.name.startswith("id_tap") else call

    def tap(self, function: Any, operand: Any) -> Any:
        return hostcb.id_tap(function, operand)

    def call(self, function: Any, operand: Any, result_shape: Any) -> Any:
        return hostcb.call(function, operand, result_shape=result_shape)

    def barrier(self) -> None:
        hostcb.barrier_wait()


IMPLEMENTATION = Hostcb()
