"""`jax.experimental.host_callback`, which JAX no longer has: a module of that name with hostcb's functions."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import jax.experimental

from .._api.host_callback import call, id_print, id_tap
from .._errors.callback_exception import CallbackException, TapFunctionException
from .._runtime.executions.barrier import barrier_wait, stop_outfeed_receiver

NAME = "jax.experimental.host_callback"
_ATTRIBUTE = NAME.rpartition(".")[2]
_PUBLIC = {
    "CallbackException": CallbackException,
    "TapFunctionException": TapFunctionException,
    "barrier_wait": barrier_wait,
    "call": call,
    "id_print": id_print,
    "id_tap": id_tap,
    "stop_outfeed_receiver": stop_outfeed_receiver,
}


def _made() -> ModuleType:
    module = ModuleType(NAME, "Host callbacks with the names of JAX's old module, by hostcb.")
    # What `importlib.util.find_spec` answers with.
    module.__spec__ = ModuleSpec(NAME, None, origin="hostcb")
    module.__package__ = NAME.rpartition(".")[0]
    module.__dict__.update(_PUBLIC)
    return module


_module = _made()


def place() -> None:
    """Let programs import the module, in each form of `import`."""
    sys.modules[NAME] = _module
    setattr(jax.experimental, _ATTRIBUTE, _module)


def take_away() -> None:
    """Undo `place`. A program that has imported the module keeps it."""
    if sys.modules.get(NAME) is _module:
        del sys.modules[NAME]
    if getattr(jax.experimental, _ATTRIBUTE, None) is _module:
        delattr(jax.experimental, _ATTRIBUTE)
