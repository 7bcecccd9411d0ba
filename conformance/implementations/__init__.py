"""Implementations under test, behind one small protocol.

An implementation says how each `Callback` is called; what the callback must then do is the
business of the semantic model.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import jax

from conformance.callbacks import Callback
from conformance.data import PLAIN, DataKind
from conformance.external_callbacks import ALL_CALLBACKS, EXTERNAL_CALLBACKS
from conformance.history import Recorder
from conformance.transforms import Probe

GUIDE = "docs/conformance.md, 'How to add an implementation'"


class Implementation(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def callback_exception(self) -> type[Exception]:
        """What the barrier raises for failed callbacks."""

    def probe(
        self, callback: Callback, recorder: Recorder, devices: Sequence[jax.Device], data: DataKind = PLAIN
    ) -> Probe:
        """The callback as a function of site and operand, reporting to `recorder`."""

    def invoke(
        self,
        callback: Callback,
        function: Callable[[Any], Any],
        operand: Any,
        wanted: Any,
        devices: Sequence[jax.Device],
        spread: bool = False,
    ) -> Any:
        """An external callback of a user function, for fault cells."""

    def returning_buffers(self, callback: Callback, operand: Any) -> Any:
        """A callback of buffers that returns what it should have written, for fault cells."""

    def with_buffer(self, callback: Callback, look: Callable[[Any], Any], operand: Any) -> Any:
        """One more than the operand, by a callback of buffers that shows `look` the operand's, for fault cells."""

    def print_as(self, text: str, *args: Any, **kwargs: Any) -> None:
        """Print values in a format, for fault cells."""

    def tap(self, function: Any, operand: Any) -> Any:
        """The plain asynchronous tap of a user function, for fault cells."""

    def call(self, function: Any, operand: Any, result_shape: Any) -> Any:
        """The plain call of a user function, for fault cells."""

    def barrier(self) -> None: ...

    def stop(self) -> None:
        """Run what is pending and end what runs callbacks, for fault cells."""

    def queue_of(self, size: int) -> AbstractContextManager[None]:
        """Let so many bytes of tapped values wait for their callbacks, for fault cells."""


BUILT_IN = ("hostcb", "jax")
_NEEDED = ("callback_exception", "probe", "barrier")


class ImplementationError(Exception):
    """An implementation that cannot be used, and what is wrong with it."""


def callbacks_of(name: str) -> tuple[Callback, ...]:
    """The callbacks an implementation has."""
    return tuple(callback for callback in _callbacks_asked_of(name) if why_not_offered(name, callback) is None)


def callbacks_missing_in(name: str) -> tuple[tuple[Callback, str], ...]:
    """Those it does not have, though it could, and why."""
    reasons = [(callback, why_not_offered(name, callback)) for callback in _callbacks_asked_of(name)]
    return tuple((callback, reason) for callback, reason in reasons if reason is not None)


def _callbacks_asked_of(name: str) -> tuple[Callback, ...]:
    return EXTERNAL_CALLBACKS if name == "jax" else ALL_CALLBACKS


@functools.cache
def why_not_offered(name: str, callback: Callback) -> str | None:
    """Why an implementation does not have a callback, if so: it says so itself."""
    if name == "hostcb" or name.startswith("conformance.mutants:"):
        # They have all, and are not imported where cells are only planned: that changes the process.
        return None
    lacks = getattr(load(name), "lacks", None)
    missing = lacks(callback) if lacks else None
    return f"{name} has no {missing}" if missing else None


@functools.cache
def load(name: str) -> Implementation:
    """Import an implementation by its name, or one of somebody else's by `module` or `module:NAME`."""
    if "/" in name or name.endswith(".py"):
        raise ImplementationError(
            f"{name!r} is no module name: put the module's folder on PYTHONPATH and name it like mypackage.mymodule"
        )
    module_name, _, attribute = name.partition(":")
    if name in BUILT_IN:
        module_name = f"conformance.implementations.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not module_name.startswith(str(error.name)):
            # The module is there, and what it needs is not.
            raise
        raise ImplementationError(
            f"there is no implementation {name!r}: no module {error.name!r} is found; there are {', '.join(BUILT_IN)},"
            " and any module on PYTHONPATH"
        ) from error
    implementation = getattr(module, attribute or "IMPLEMENTATION", None)
    if implementation is None:
        raise ImplementationError(f"the module {module_name} has no {attribute or 'IMPLEMENTATION'}: see {GUIDE}")
    if missing := [wanted for wanted in _NEEDED if not hasattr(implementation, wanted)]:
        raise ImplementationError(
            f"the implementation {name} lacks {', '.join(missing)}: derive it from"
            f" conformance.implementations.external.ExternalCallbacks, or see {GUIDE}"
        )
    found: Implementation = implementation
    return found
