"""Implementations under test: any object with `callback_exception`, `probe` and `barrier`.

An implementation defines how to call each `Callback`. The semantic model defines the right behaviour
of the callback. Cases that use what an object does not have fail.
"""

from __future__ import annotations

import functools
import importlib
import traceback
from typing import TypeAlias

from ..spec.callbacks import Callback
from ..spec.errors import CommandError, did_you_mean
from ..spec.external_callbacks import ALL_CALLBACKS, OWN_FUNCTIONS, callbacks_of_jax, functions_of
from ..spec.jax_versions import why_no_hostcb
from ..spec.package import module
from .external import ExternalCallbacks

GUIDE = "docs/extending.md, 'An implementation'"

Implementation: TypeAlias = ExternalCallbacks
"""What most implementations derive from: any object with the three names of `_NEEDED` is one."""

BUILT_IN = ("hostcb", "jax")
_NEEDED = ("callback_exception", "probe", "barrier")


class ImplementationError(CommandError):
    """An implementation that cannot be used; the text says why."""


def callbacks_asked_of(name: str) -> tuple[Callback, ...]:
    """The callbacks that an implementation could have. They do not depend on the installed release of JAX."""
    return callbacks_of_jax() if name == "jax" else tuple(ALL_CALLBACKS)


def callbacks_drawn_for(name: str) -> tuple[Callback, ...]:
    """The callbacks for which the selection draws cells.

    For the suite's own implementations these are the same on every release, so that two releases have the same plan.
    An implementation outside the suite decides itself what it offers: rows of other callbacks would cover nothing.
    """
    own = name in BUILT_IN or name.startswith(f"{module('mutants')}:")
    return tuple(each for each in callbacks_asked_of(name) if own or why_not_offered(name, each) is None)


@functools.cache
def why_not_offered(name: str, callback: Callback) -> str | None:
    """The reason, from the implementation itself, if it does not have a callback; otherwise None."""
    if _is_hostcb(name):
        further = next((function for function in functions_of(callback) if function not in OWN_FUNCTIONS), None)
        return f"{name} has no {further}" if further else why_no_hostcb()
    lacks = getattr(_load_for_planning(name), "lacks", None)
    missing = lacks(callback) if lacks else None
    return f"{name} has no {missing}" if missing else None


def why_without(name: str, functions: str) -> str | None:
    """The reason if the implementation's module has not all of these functions, which are words; otherwise None."""
    if not functions or _is_hostcb(name):
        return None
    namespace = getattr(_load_for_planning(name), "namespace", None)
    missing = [function for function in functions.split() if not hasattr(namespace, function)]
    return f"{name} has no {', '.join(missing)}" if missing else None


def _is_hostcb(name: str) -> bool:
    """Whether it is hostcb or a mutant of it, which have all functions.

    Planning does not import them, because their import changes the process.
    """
    return name == "hostcb" or name.startswith(f"{module('mutants')}:")


def base_of(name: str) -> str | None:
    """The implementation of the suite around which another one is made, if it says so: it has its known failures."""
    if name in BUILT_IN:
        return None
    base = "hostcb" if _is_hostcb(name) else getattr(_load_for_planning(name), "base", None)
    if base is not None and base not in BUILT_IN:
        raise ImplementationError(f"{name} says that its base is {base!r}: expected one of {', '.join(BUILT_IN)}")
    return base


_LOADED: dict[str, Implementation] = {}
"""By the path, the latest one last."""


def path_of(implementation: Implementation) -> str:
    """The path by which another process loads this implementation; its `name` is only for messages."""
    # Several paths may load the same object; the run uses the latest one.
    for path, loaded in reversed(_LOADED.items()):
        if loaded is implementation:
            return path
    name = getattr(implementation, "name", None)
    # This object was made here, and not loaded. Its name could lead another process to a different implementation.
    if isinstance(name, str) and type(load(name)) is type(implementation):
        return name
    raise ImplementationError(
        f"no other process finds {implementation!r}: it was not loaded by an import path, and its name {name!r} is none"
    )


def load(name: str) -> Implementation:
    """Import an implementation by its name, or one outside the suite by `module` or `module:NAME`."""
    implementation = _LOADED.pop(name) if name in _LOADED else _load(name)
    _LOADED[name] = implementation
    return implementation


def _load(name: str) -> Implementation:
    if "/" in name or name.endswith(".py"):
        raise ImplementationError(
            f"{name!r} is no module name: put the module's folder on PYTHONPATH and name it like mypackage.mymodule"
        )
    module_name, _, attribute = name.partition(":")
    if not all(module_name.split(".")):
        raise ImplementationError(f"{name!r} is no module name: expected one like mypackage.mymodule")
    if name in BUILT_IN:
        module_name = f"{__name__}.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            # The module exists, but an import inside it failed.
            raise
        raise ImplementationError(
            f"there is no implementation {name!r}: no module {error.name!r} is found; there are {', '.join(BUILT_IN)},"
            f" and any module on PYTHONPATH{did_you_mean(name, BUILT_IN)}"
        ) from error
    implementation = getattr(module, attribute or "IMPLEMENTATION", None)
    if implementation is None:
        raise ImplementationError(f"the module {module_name} has no {attribute or 'IMPLEMENTATION'}: see {GUIDE}")
    if missing := [wanted for wanted in _NEEDED if not hasattr(implementation, wanted)]:
        raise ImplementationError(
            f"the implementation {name} lacks {', '.join(missing)}: derive it from"
            f" {__name__}.external.ExternalCallbacks, or see {GUIDE}"
        )
    return implementation


def _load_for_planning(name: str) -> Implementation:
    """As `load`; what the import of a user's module raises is an `ImplementationError` of one line."""
    try:
        return load(name)
    except ImplementationError:
        raise
    except (Exception, SystemExit) as error:
        if name in BUILT_IN:
            # An error of the suite or of hostcb, whose traceback is needed.
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        # The compiler raises a SyntaxError, which knows the place in the module itself.
        file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
        raised = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ImplementationError(
            f"the import of {name.partition(':')[0]} raised {raised} ({file}, line {line})"
        ) from error
