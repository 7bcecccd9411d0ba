"""The options that decide which cells a run has: they plan it, and its results keep them, to plan it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..cases.harness.extensions import extend
from ..planning import selection as selecting
from ..planning.cells import Plan
from ..planning.depths import at_depth, multi_host_cells
from ..planning.processes import USUAL, plan_over_processes
from ..planning.smoke import smoke
from ..reports.provenance import RequiredCells
from ..spec.depths import Depth
from ..spec.topology import parse_topology


def planned(
    implementations: Sequence[str],
    platform: str,
    devices: Sequence[int],
    choice: selecting.Choice,
    depth: Depth,
    usual: bool,
    smoked: bool = False,
) -> Plan:
    """The cells for every release; `usual` says whether the user has left the numbers of devices to the suite."""
    plan = selecting.whole_plan_of(implementations, platform, devices, choice)
    if platform == "cpu" and usual and depth is Depth.RUN:
        plan = plan.with_(plan_over_processes(implementations, [USUAL]))
    # In this order: what has no meaning at the depth must not stand for what has.
    plan = at_depth(plan, depth)
    plan = smoke(plan) if smoked else plan
    if depth is Depth.COMPILE and usual and not smoked:
        plan = replace(plan, cells=(*plan.cells, *multi_host_cells(plan, platform)))
    return plan


def recorded(options: Any, implementations: Sequence[str], patterns: Sequence[str]) -> dict[str, Any]:
    """The options that the results keep."""
    kept = ("platform", "seed", "full", "smoke", "deadline", "repeat", "stress", "histories")
    lists = {
        "devices": list(options.devices),
        "implementations": list(implementations),
        "topologies": [topology.name for topology in options.topologies or ()],
        "cells": list(options.cell_ids),
        # Pytest's own command line has a keyword of its own.
        "patterns": [*patterns, *filter(None, [getattr(options, "keyword", "")])],
        "plugins": list(getattr(options, "pytest_plugins", ())),
    }
    others = {
        "depth": options.chosen.depth.value,
        "usual_devices": getattr(options, "usual_devices", False),
        "plan_file": bool(options.plan_file),
        "maxfail": options.maxfail or None,
        "compiled": bool(getattr(options, "compiled", None)),
    }
    return {name: getattr(options, name) for name in kept} | lists | others


def planned_again(options: Mapping[str, Any]) -> list[str]:
    """The ids of all cells from which a run with these recorded options has selected."""
    return [cell.id for cell in _whole(options).cells]


def required(options: Mapping[str, Any], selected: Plan) -> RequiredCells:
    """The plan of these recorded options, of which `selected` is all, or what `--smoke` leaves of it."""
    whole = _whole(options) if options["smoke"] else selected
    lacking = whole.on_this_release().lacking
    return RequiredCells([cell.id for cell in whole.cells], {cell.id: cell.lacking or "" for cell in lacking})


def _whole(options: Mapping[str, Any]) -> Plan:
    implementations = options["implementations"]
    extend(options["platform"])
    if options["topologies"]:
        return plan_over_processes(implementations, [parse_topology(name)[0] for name in options["topologies"]])
    return planned(
        implementations,
        options["platform"],
        options["devices"],
        selecting.Choice(options["seed"], options["full"]),
        Depth(options["depth"]),
        options["usual_devices"],
    )
