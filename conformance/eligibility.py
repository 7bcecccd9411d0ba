"""Which cells mean anything, and for the others why not.

A composition that JAX itself refuses, whatever the callback, is declared here with the reason. A
program that the *callback* must refuse is not: it is an eligible cell that checks the refusal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from conformance.callbacks import Callback, DeviceChoice
from conformance.programs import Program

MAPS = ("pmap", "shard_map")
LOOPS_WITHOUT_REVERSE_MODE = ("while_body", "while_cond")


def ineligible(callback: Callback, program: Program, device_count: int) -> str | None:
    """Why this cell means nothing, or None."""
    names = program.names
    if reason := meaningless(names):
        return reason
    if callback.device_choice is DeviceChoice.LAST and "pjit" not in names:
        return "a device is chosen only where one computation spans a mesh"
    if callback.partitioned and "pjit" not in names:
        return "a callback has shards only where one computation spans a mesh"
    if callback.refusals.checkpoint and _in_order(names, "grad", "custom_jvp", "remat"):
        return "nothing says whether a checkpoint inside of a custom rule counts as differentiated, and JAX may refuse"
    if callback.vmap_method is not None and "vmap" not in names and len(names) > 1:
        return "vmap_method only matters under vmap; elsewhere this is the plain call"
    return None


def _in_order(names: Sequence[str], *wanted: str) -> bool:
    """Whether these transforms are there, each inside of the one before."""
    rest = iter(names)
    return all(name in rest for name in wanted)


@functools.cache
def meaningless(names: tuple[str, ...]) -> str | None:
    """Why a composition means nothing whatever the callback, or None."""
    rules = (
        _eager_inside,
        _reverse_mode_loop,
        _forward_mode_custom_vjp,
        _nested_devices,
        _second_order_checkpoint,
        _detached_from_nothing,
    )
    return next((reason for rule in rules if (reason := rule(names))), None)


def _first(names: Sequence[str], wanted: Callable[[str], bool], start: int = 0) -> int | None:
    return next((i for i, name in enumerate(names) if i >= start and wanted(name)), None)


def _inside(names: Sequence[str], outer: str) -> Sequence[str]:
    """What is differentiated by `outer`: the transforms inside it, up to a custom rule."""
    if outer not in names:
        return ()
    inside = names[names.index(outer) + 1 :]
    custom = _first(inside, lambda name: name in ("custom_jvp", "custom_vjp"))
    return inside if custom is None else inside[: custom + 1]


def _reverse_mode_loop(names: Sequence[str]) -> str | None:
    if any(name in LOOPS_WITHOUT_REVERSE_MODE for name in _inside(names, "grad")):
        return "JAX has no reverse-mode derivative of while_loop"
    return None


def _forward_mode_custom_vjp(names: Sequence[str]) -> str | None:
    if "custom_vjp" in _inside(names, "jvp"):
        return "JAX refuses forward-mode derivatives of custom_vjp functions"
    return None


def _eager_inside(names: Sequence[str]) -> str | None:
    if "eager" in names and len(names) > 1:
        return "eager is the absence of a transform and composes to nothing new"
    return None


def _second_order_checkpoint(names: Sequence[str]) -> str | None:
    outside = names[: names.index("remat")] if "remat" in names else ()
    if sum(name in ("grad", "jvp") for name in outside) > 1 and "grad" in outside:
        return "nothing promises how often higher derivatives recompute a checkpointed function"
    return None


def _detached_from_nothing(names: Sequence[str]) -> str | None:
    if "detached" not in names:
        return None
    outside = names[: names.index("detached")]
    if not any(name in ("grad", "jvp") for name in outside) or names.count("detached") > 1:
        return "stop_gradient only matters once, inside of a derivative"
    return None


def _nested_devices(names: Sequence[str]) -> str | None:
    outer = _first(names, lambda name: name in MAPS)
    if outer is None:
        return None
    inside = names[outer + 1 :]
    if any(name in MAPS for name in inside):
        return "JAX refuses maps over devices inside of maps over the same devices"
    if "pjit" in inside:
        return "a computation over a mesh cannot be split over the devices it already spans"
    return None
