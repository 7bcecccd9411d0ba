"""What vendors add to the suite: callbacks, transforms and cases, from entry points and from a platform's modules.

Each process that plans or runs cells calls `extend` before it does so, so all know the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...model.transforms import TRANSFORMS
from ...spec import entry_points as points
from ...spec.callbacks import Callback
from ...spec.entry_points import PAGE, VendorError
from ...spec.external_callbacks import ALL_CALLBACKS, add_callback
from ...spec.platforms import platform_named
from .catalogue import all_cases
from .registry import RegisteredCase, enter

PLATFORM = "HOSTCB_CONFORMANCE_PLATFORM"
"""The environment variable by which a worker names the platform to the programs that it starts."""

_done: set[str] = set()
_FACES = ("name", "promises", "radix", "jax_face", "model_face")


def extend(platform: str) -> None:
    """Add what installed packages have for all platforms, and then what this platform's modules have."""
    if not _done:
        # Before they are loaded: a vendor's function may itself ask for cells.
        _done.add("")
        for group, add in ((points.CALLBACKS, _add_callback), (points.TRANSFORMS, _add_transform)):
            for point in points.entry_points(group):
                _add_all(points.load(point), add, points.origin(point))
        for point in points.entry_points(points.CASES):
            # First the suite's own: a second case of a name is the vendor's mistake.
            all_cases()
            _add_cases(points.load(point), points.origin(point))
    if platform not in _done:
        _done.add(platform)
        described = platform_named(platform)
        for name in described.modules:
            all_cases()
            where = f"{name}, a module of the platform {platform}"
            module = points.import_module(name, described.source)
            _add_all(getattr(module, "CALLBACKS", ()), _add_callback, f"CALLBACKS of {where}")
            _add_all(getattr(module, "TRANSFORMS", ()), _add_transform, f"TRANSFORMS of {where}")
            _add_all(getattr(module, "CASES", ()), _add_case, f"CASES of {where}")


def extend_as_started() -> None:
    """The same in a program that a worker has started."""
    extend(os.environ.get(PLATFORM, "cpu"))


def _add_all(found: Any, add: Callable[[Any, str], None], where: str) -> None:
    """Add one object, those of a list, or those that a function returns."""
    if callable(found) and not isinstance(found, type) and not hasattr(found, "jax_face"):
        found = points.attempted(found, where)
    if isinstance(found, Mapping):
        found = found.values()
    several = isinstance(found, Iterable) and not isinstance(found, str)
    for one in found if several else (found,):
        add(one, where)


def _add_callback(one: Any, where: str) -> None:
    if not isinstance(one, Callback):
        raise VendorError(f"{where} has {one!r}: expected a conformance.spec.callbacks.Callback ({PAGE})")
    _check_name(one.name, where)
    if any(known.name == one.name for known in ALL_CALLBACKS):
        raise VendorError(f"{where}: there is a callback {one.name!r} already: give it another name")
    add_callback(one)


def _add_transform(one: Any, where: str) -> None:
    one = points.attempted(one, where) if isinstance(one, type) else one
    if missing := [face for face in _FACES if not hasattr(one, face)]:
        raise VendorError(f"{where} has {one!r}, which is no transform: it has no {missing[0]} ({PAGE})")
    _check_name(one.name, where)
    if one.name in TRANSFORMS or one.name in ("case", "table"):
        raise VendorError(f"{where}: there is a transform {one.name!r} already: give it another name")
    if not isinstance(one.radix, int) or one.radix % 2 != 1 or one.radix < 1:
        raise VendorError(f"{where}: the radix of {one.name!r} is an odd number greater than 0, not {one.radix!r}")
    TRANSFORMS[one.name] = one


def _add_cases(found: Any, where: str) -> None:
    """Those of a module have been entered by its import, by `case`; other objects are cases, or lists of them."""
    if not hasattr(found, "__spec__"):
        _add_all(found, _add_case, where)


def _add_case(one: Any, where: str) -> None:
    if not isinstance(one, RegisteredCase):
        raise VendorError(
            f"{where} has {one!r}: expected a conformance.cases.harness.registry.RegisteredCase, or a module ({PAGE})"
        )
    points.attempted(lambda: enter(one), where)


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name or {*name} & {*"/.+* "}:
        raise VendorError(f"{where} has the name {name!r}: ids of cells have it, so no '/', '.', '+', '*' or space")
