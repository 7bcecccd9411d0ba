"""Options of a run: the command line and pytest with the suite's plugin share them.

This module does not import JAX, since the pytest processes of a run do not need it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..spec.platform_files import why_no_name
from ..spec.topology import Topology, UnknownTopologyError, parse_topology
from .selections import RESULTS, SELECTION
from .shards import parse_shard

DEPTHS = ("auto", "lower", "compile", "run")

AddOption: TypeAlias = Callable[..., Any]
"""`add_argument` of an argument parser, or `addoption` of pytest's."""


def add_selection(add: AddOption) -> None:
    """Add the options that select cells."""
    add(
        "--platform",
        type=_platform,
        default="cpu",
        metavar="NAME",
        help="one that JAX has a plugin for (`list --platforms`): cpu, cuda, rocm, tpu, ...",
    )
    add(
        "--platform-file",
        type=Path,
        metavar="FILE",
        help="the platform that this TOML file describes (docs/vendors.md)",
    )
    add(
        "--devices",
        type=_device_counts,
        metavar="COUNTS",
        help="device counts, like 1,8; by default 1,2,4,8 on cpu, elsewhere one and as many as there are",
    )
    add(
        "--depth",
        choices=DEPTHS,
        default=DEPTHS[0],
        help="how far the cells are taken: lower, compile (without the hardware), run; by default the deepest here",
    )
    add(
        "--topology",
        dest="topologies",
        action="append",
        type=_topology,
        metavar="NAME",
        help="only this topology of several processes, like cpu-2x4: two processes of four devices; may be repeated",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="another draw of the compositions and covering rows that are sampled",
    )
    add("--full", action="store_true", help="all that docs/selection.md says, for hours")
    add("--smoke", action="store_true", help="each callback, transform and value of an axis once, in a minute")
    add(
        "--implementation",
        dest="implementations",
        action="append",
        metavar="NAME",
        help="only this implementation: hostcb, jax, or a MODULE or MODULE:NAME of your own; may be repeated",
    )


def add_running(add: AddOption) -> None:
    """Add the options for running cells, and for their expectations."""
    add("--cell", action="append", default=[], metavar="ID", dest="cell_ids", help="this cell; may be repeated")
    add(
        "--plan",
        type=Path,
        dest="plan_file",
        metavar="FILE",
        help="the cells in this file, as `list --plan` prints it; of these only the --implementation that is named",
    )
    add(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help=f"where the results are written; chosen cells have {SELECTION} without this option",
    )
    add(
        "--shard",
        type=parse_shard,
        metavar="K/N",
        help="one of N parts of the selected cells, which take about as long as each other; `merge` joins them",
    )
    add("--balance", type=Path, metavar="DIR", help="with --shard: split by the seconds of each cell in these results")
    add("--resume", action="store_true", help="go on with the run in the results folder, which was killed")
    add(
        "--retry-missing",
        action="store_true",
        help="run only the cells that are missing in the results folder, or have a harness_error, and add them there",
    )
    add("--deadline", type=positive(float), default=60.0, metavar="SECONDS", help="for each cell")
    add(
        "--repeat",
        type=positive(int),
        default=1,
        metavar="N",
        help="run each cell N times in one process, and report how often it fails",
    )
    add(
        "--order",
        choices=("kills", "planned"),
        default="kills",
        help="begin with the cells that kill most mutants, which is the default, or run them in their places",
    )
    add("--stress", action="store_true", help="keep every core of the machine busy meanwhile: races show under load")
    add(
        "--histories",
        action="store_true",
        help="keep the history of each cell, also of those that pass; a cell of hostcb is traced for it",
    )
    add(
        "--expectations",
        type=Path,
        metavar="FILE",
        help="file of known failures; by default ci/expectations/PLATFORM.toml",
    )


def add_pytest(add: AddOption) -> None:
    """Add options that pytest's own command line has as well."""
    add(
        "--maxfail",
        type=positive(int),
        metavar="N",
        help="stop after N unexpected results; the other cells are MISSING then",
    )
    add(
        "-p",
        dest="pytest_plugins",
        action="append",
        default=[],
        metavar="NAME",
        help="load this pytest plugin into the pytest processes of the run, as pytest's -p does; may be repeated",
    )


def add_scheduler(add: AddOption, what: str) -> None:
    add(
        "--scheduler",
        type=scheduler_address,
        metavar="ADDRESS",
        help=f"{what} on the Dask cluster of this scheduler, tcp://HOST:PORT (docs/spreading.md)",
    )


def _platform(text: str) -> str:
    if reason := why_no_name(text):
        raise argparse.ArgumentTypeError(reason)
    return text


def scheduler_address(text: str) -> str:
    """The type of an option that is the address of a Dask scheduler."""
    match = re.fullmatch(r"\w+://.+:(\d{1,5})", text, re.ASCII)
    if not match or not 0 < int(match[1]) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a Dask scheduler, like tcp://host:8786")
    return text


def _device_counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({positive(int)(count) for count in text.split(",")}))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of device counts, like 1,8") from error


def _topology(text: str) -> Topology:
    try:
        topology, options = parse_topology(text)
    except UnknownTopologyError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if options or topology.processes == 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no topology of several processes, like cpu-2x4; --devices gives those of one process"
        )
    return topology


Number = TypeVar("Number", int, float)


def positive(kind: Callable[[str], Number]) -> Callable[[str], Number]:
    """The type of an option that is a number greater than zero."""

    def number(text: str) -> Number:
        found = kind(text)
        if found <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
        return found

    return number
