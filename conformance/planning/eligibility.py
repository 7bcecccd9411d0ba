"""Decides which cells are eligible, with a reason for each of the others.

This module declares the compositions that JAX itself refuses with any callback, each with a reason. A
program that the *callback* must refuse is an eligible cell, which checks the refusal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ..model.programs import Program
from ..spec.callbacks import Callback, DeviceChoice

MAPS = ("pmap", "shard_map")
LOOPS_WITHOUT_REVERSE_MODE = ("while_body", "while_cond")


def ineligible(callback: Callback, program: Program, device_count: int) -> str | None:
    """The reason if this cell has no meaning; otherwise None."""
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


def ineligible_over_processes(names: Sequence[str], placement: str) -> str | None:
    """The reason if a program has no meaning where several processes have the devices; otherwise None."""
    if placement not in ("all", "grid"):
        return f"placement {placement} leaves out devices, and some processes would have none"
    outside = names[: _first(names, lambda name: name in ("pmap", "pjit", "shard_map"))]
    if "pmap" in names and "pjit" in names:
        return "a pmap takes the part of its own process, and a computation over all processes has none"
    if len(outside) < len(names) and "grad" in outside and "custom_vjp" in outside:
        return "nothing says in which processes a cotangent outside of the computation over all devices is"
    return None


def _in_order(names: Sequence[str], *wanted: str) -> bool:
    """Whether the composition has these transforms, each inside the one before."""
    rest = iter(names)
    return all(name in rest for name in wanted)


@functools.cache
def meaningless(names: tuple[str, ...]) -> str | None:
    """The reason if a composition has no meaning with any callback; otherwise None."""
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
    """The transforms that `outer` differentiates: those inside it, up to a custom rule."""
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
