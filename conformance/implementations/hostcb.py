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
from .payloads import Payload, ProgramFunction, payload_of


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
        payload = payload_of(callback, data)
        device_index = len(devices) - 1 if callback.device_choice is DeviceChoice.LAST else 0

        def tap(site: str, value: jax.Array) -> jax.Array:
            options = {"result": payload.new(value)} if callback.returns_new_value else {}
            function, operand = ProgramFunction(site, recorder, payload), payload.operand(value)
            tapped = self.namespace.id_tap(function, operand, device_index=device_index, **callback.options, **options)
            return payload.received(value, tapped) if callback.returns_new_value else payload.passed(value, tapped)

        def print_(site: str, value: jax.Array) -> jax.Array:
            stream = _PrintStream(recorder, payload)
            return payload.passed(
                value, self.namespace.id_print(payload.operand(value), what=site, output_stream=stream)
            )

        own = {"id_tap": tap, "id_print": print_}.get(callback.function)
        return own or super().probe_one(callback, recorder, devices, data)

    def invoke(self, callback: Callback, function: Any, operand: Any, wanted: Any, *more: Any, **named: Any) -> Any:
        if callback.function != "call":
            return super().invoke(callback, function, operand, wanted, *more, **named)
        shape = wanted if callback.returns_new_value else None
        return self.namespace.call(function, operand, result_shape=shape, **callback.options)

    def print_labelled(self, operand: Any, **labels: Any) -> Any:
        return self.namespace.id_print(operand, **labels)

    def tap(self, function: Any, operand: Any) -> Any:
        return self.namespace.id_tap(function, operand)

    def call(self, function: Any, operand: Any, result_shape: Any, **options: Any) -> Any:
        return self.namespace.call(function, operand, result_shape=result_shape, **options)

    def barrier(self) -> None:
        self.namespace.barrier_wait()


IMPLEMENTATION = Hostcb(hostcb)
