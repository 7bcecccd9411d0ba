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


def _first(names: Sequence[str], wanted: Callable[[str], bool]) -> int | None:
    return next((i for i, name in enumerate(names) if wanted(name)), None)


def _inside(names: Sequence[str], outer: str) -> Sequence[str]:
    """The transforms that `outer` differentiates: those inside it, up to a custom rule."""
    if outer not in names:
        return ()
    inside = names[names.index(outer) + 1 :]
    custom = _first(inside, lambda name: name in ("custom_jvp", "custom_vjp"))
    return inside if custom is None else inside[: custom + 1]


def _detached_from_nothing(names: Sequence[str]) -> bool:
    outside = names[: names.index("detached")] if "detached" in names else ("grad",)
    return not {"grad", "jvp"} & {*outside} or names.count("detached") > 1


def _second_order_checkpoint(names: Sequence[str]) -> bool:
    outside = names[: names.index("remat")] if "remat" in names else ()
    return sum(name in ("grad", "jvp") for name in outside) > 1 and "grad" in outside


def _inside_maps(names: Sequence[str], *wanted: str) -> bool:
    outer = _first(names, lambda name: name in MAPS)
    return outer is not None and bool({*wanted} & {*names[outer + 1 :]})


_RULES: tuple[tuple[str, Callable[[Sequence[str]], bool]], ...] = (
    (
        "eager is the absence of a transform and composes to nothing new",
        lambda names: "eager" in names and len(names) > 1,
    ),
    (
        "JAX has no reverse-mode derivative of while_loop",
        lambda names: bool({*LOOPS_WITHOUT_REVERSE_MODE} & {*_inside(names, "grad")}),
    ),
    (
        "JAX refuses forward-mode derivatives of custom_vjp functions",
        lambda names: "custom_vjp" in _inside(names, "jvp"),
    ),
    ("JAX refuses maps over devices inside of maps over the same devices", lambda names: _inside_maps(names, *MAPS)),
    (
        "a computation over a mesh cannot be split over the devices it already spans",
        lambda names: _inside_maps(names, "pjit"),
    ),
    ("nothing promises how often higher derivatives recompute a checkpointed function", _second_order_checkpoint),
    ("stop_gradient only matters once, inside of a derivative", _detached_from_nothing),
)


@functools.cache
def meaningless(names: tuple[str, ...]) -> str | None:
    """The reason if a composition has no meaning with any callback; otherwise None."""
    return next((reason for reason, holds in _RULES if holds(names)), None)
