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
from conformance.implementations.external import ExternalCallbacks
from conformance.implementations.host_functions import ReturningFunction, parse_array
from conformance.transforms import Probe


@dataclass(frozen=True)
class _TapFunction:
    site: str
    recorder: Recorder

    def __call__(self, operand: Any, transforms: Any, device: Any = None) -> None:
        with self.recorder.callback(self.site, operand, transforms, device):
            pass


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
            parse_array(body),
            tuple(ast.literal_eval(transforms.group(1))) if transforms else (),
        ):
            pass


class Hostcb(ExternalCallbacks):
    name = "hostcb"
    callback_exception: type[Exception] = hostcb.CallbackException

    def probe_one(self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device]) -> Probe:
        if callback.function not in ("id_tap", "id_print", "call"):
            return super().probe_one(callback, recorder, devices)
        device_index = len(devices) - 1 if callback.device_choice is DeviceChoice.LAST else 0

        def operand_of(value: jax.Array) -> Any:
            return {"constant": CONSTANT_OPERAND, "value": value} if callback.takes_tree else value

        def tap(site: str, value: jax.Array) -> jax.Array:
            options: dict[str, Any] = {}
            if callback.receives_device:
                options["tap_with_device"] = True
            if callback.returns_new_value:
                options["result"] = value + np.float32(RETURNED_OFFSET)
            tapped = self.namespace.id_tap(
                _TapFunction(site, recorder),
                operand_of(value),
                device_index=device_index,
                **options,
            )
            return tapped["value"] if callback.takes_tree else tapped

        def print_(site: str, value: jax.Array) -> jax.Array:
            stream = _PrintStream(recorder)
            return self.namespace.id_print(value, what=site, output_stream=stream)

        def call(site: str, value: jax.Array) -> jax.Array:
            options: dict[str, Any] = {}
            if callback.vmap_method is not None:
                options["vmap_method"] = callback.vmap_method
            if callback.receives_device:
                options["call_with_device"] = True
            result = self.namespace.call(
                ReturningFunction(site, recorder, callback.returns_new_value),
                operand_of(value),
                result_shape=jax.ShapeDtypeStruct(jnp.shape(value), jnp.float32)
                if callback.returns_new_value
                else None,
                **options,
            )
            return result if callback.returns_new_value else value

        return {"id_tap": tap, "id_print": print_, "call": call}[callback.function]

    def tap(self, function: Any, operand: Any) -> Any:
        return self.namespace.id_tap(function, operand)

    def call(self, function: Any, operand: Any, result_shape: Any) -> Any:
        return self.namespace.call(function, operand, result_shape=result_shape)

    def barrier(self) -> None:
        self.namespace.barrier_wait()


IMPLEMENTATION = Hostcb(hostcb)
