"""hostcb, through its public names only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

import hostcb

from ..model.transforms import Probe
from ..oracle.history import Recorder
from ..oracle.literals import literal
from ..spec.callbacks import Callback, DeviceChoice
from ..spec.data import DataKind
from .external import ExternalCallbacks
from .host_functions import Sited
from .payloads import Payload, payload_of


@dataclass(frozen=True, repr=False)
class _TapFunction(Sited):
    site: str
    recorder: Recorder
    payload: Payload

    def __call__(self, operand: Any, transforms: Any, device: Any = None) -> None:
        with self.recorder.callback(self.payload.seen(operand, self.site), operand, transforms, device):
            pass


@dataclass(frozen=True)
class _PrintStream:
    """Turns the text of id_print back into events."""

    recorder: Recorder = field(repr=False)
    payload: Payload = field(repr=False)

    def write(self, text: str) -> None:
        heading, _, body = text.partition("\n")
        transforms = re.search(r"transforms: (\[.*\])", heading)
        site = re.search(r"what: (\w+)", heading)
        with self.recorder.callback(
            site.group(1) if site else f"unlabelled print {text!r}",
            self.payload.parse(body),
            # An entry without parameters is printed as its name.
            tuple((each, {}) if isinstance(each, str) else each for each in literal(transforms.group(1)))
            if transforms
            else (),
        ):
            pass


class Hostcb(ExternalCallbacks):
    name = "hostcb"
    callback_exception: type[Exception] = hostcb.CallbackException

    def probe_one(self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device], data: DataKind) -> Probe:
        if callback.function not in ("id_tap", "id_print", "call"):
            return super().probe_one(callback, recorder, devices, data)
        device_index = len(devices) - 1 if callback.device_choice is DeviceChoice.LAST else 0

        payload = payload_of(callback, data)

        def tap(site: str, value: jax.Array) -> jax.Array:
            options: dict[str, Any] = {}
            if callback.receives_device:
                options["tap_with_device"] = True
            if callback.returns_new_value:
                options["result"] = payload.new(value)
            tapped = self.namespace.id_tap(
                _TapFunction(site, recorder, payload), payload.operand(value), device_index=device_index, **options
            )
            return payload.received(value, tapped) if callback.returns_new_value else payload.passed(value, tapped)

        def print_(site: str, value: jax.Array) -> jax.Array:
            stream = _PrintStream(recorder, payload)
            return payload.passed(
                value, self.namespace.id_print(payload.operand(value), what=site, output_stream=stream)
            )

        def call(site: str, value: jax.Array) -> jax.Array:
            options: dict[str, Any] = {}
            if callback.vmap_method is not None:
                options["vmap_method"] = callback.vmap_method
            if callback.receives_device:
                options["call_with_device"] = True
            result = self.namespace.call(
                payload.function(site, recorder),
                payload.operand(value),
                result_shape=payload.wanted(value) if callback.returns_new_value else None,
                **options,
            )
            return payload.received(value, result) if callback.returns_new_value else value

        return {"id_tap": tap, "id_print": print_, "call": call}[callback.function]

    def print_labelled(self, operand: Any, **labels: Any) -> Any:
        return self.namespace.id_print(operand, **labels)

    def tap(self, function: Any, operand: Any) -> Any:
        return self.namespace.id_tap(function, operand)

    def call(self, function: Any, operand: Any, result_shape: Any, **options: Any) -> Any:
        return self.namespace.call(function, operand, result_shape=result_shape, **options)

    def barrier(self) -> None:
        self.namespace.barrier_wait()


IMPLEMENTATION = Hostcb(hostcb)
