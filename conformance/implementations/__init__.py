"""Implementations under test, behind one small protocol.

An implementation says how each `Callback` is called; what the callback must then do is the
business of the semantic model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from conformance.callbacks import Callback
from conformance.external_callbacks import ALL_CALLBACKS, EXTERNAL_CALLBACKS
from conformance.history import Recorder
from conformance.transforms import Probe


class Implementation(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def callback_exception(self) -> type[Exception]:
        """What the barrier raises for failed callbacks."""

    def probe(self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device]) -> Probe:
        """The callback as a function of site and operand, reporting to `recorder`."""

    def invoke(
        self,
        callback: Callback,
        function: Callable[[Any], Any],
        operand: Any,
        wanted: Any,
        devices: Sequence[jax.Device],
    ) -> Any:
        """An external callback of a user function, for fault cells."""

    def returning_buffers(self, callback: Callback, operand: Any) -> Any:
        """A callback of buffers that returns what it should have written, for fault cells."""

    def tap(self, function: Any, operand: Any) -> Any:
        """The plain asynchronous tap of a user function, for fault cells."""

    def call(self, function: Any, operand: Any, result_shape: Any) -> Any:
        """The plain call of a user function, for fault cells."""

    def barrier(self) -> None: ...


def callbacks_of(name: str) -> tuple[Callback, ...]:
    """The callbacks an implementation has; known without importing it."""
    return EXTERNAL_CALLBACKS if name == "jax" else ALL_CALLBACKS


def load(name: str) -> Implementation:
    """Import an implementation by name, or by `module:name` for one outside of this package."""
    module_name, _, attribute = name.partition(":")
    if not attribute:
        module_name, attribute = f"conformance.implementations.{name}", "IMPLEMENTATION"
    implementation: Implementation = getattr(importlib.import_module(module_name), attribute)
    return implementation
