"""Options of a run: the command line, and the one object that carries them to wherever the cells run.

This module does not import JAX, since the pytest processes of a run do not need it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..reports.results import name_of
from ..spec.errors import CommandError
from ..spec.platform_files import why_no_name
from ..spec.topology import UnknownTopologyError, parse_topology

AUTO = "auto"
DEPTHS = (AUTO, "lower", "compile", "run")

IMPLEMENTATIONS = ("hostcb", "jax")

FILE_ENDING = ".toml"
"""Of `--platform`, where it is a file."""

HOSTS = "hosts"
"""The value of `--spread` for the hosts of a cluster's job."""

RESULTS = Path("results")
"""Where the results of a full run go by default."""

SELECTION = RESULTS / "selection"
"""Where those of chosen cells go by default: they never replace those of a full run."""

SELECTING = ("-k", "-m", "--lf", "--last-failed", "--deselect", "--sw", "--stepwise")
"""Options of pytest after which only some of the cells run."""


@dataclass(frozen=True)
class Shard:
    number: int
    """From 1 on."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_shard(text: str) -> Shard:
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard: expected K/N with K from 1 to N, like 3/8")
    return Shard(int(found[1]), int(found[2]))


class ConflictingOptionsError(CommandError):
    """Options that exclude each other."""


class PytestOptionsError(CommandError):
    """Options for pytest that it refuses."""


@dataclass(frozen=True)
class RunOptions:
    """The options of one run. `preparation.whole_plan_of` fills in what the user has left to the suite."""

    platform: str = "cpu"
    """The name; before `preparation.take_platform` perhaps the path of a file that describes one."""
    devices: tuple[int, ...] = ()
    usual_devices: bool = False
    """Whether the suite has chosen the numbers of devices."""
    depth: str = AUTO
    depth_asked: bool = True
    """Whether the user has named the depth. If the machine has chosen one, its exit code says so."""
    topologies: tuple[str, ...] = ()
    seed: int = 0
    full: bool = False
    smoke: bool = False
    implementations: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    """The ids; before `preparation.prepare` perhaps `@FILE`, a file of ids."""
    results: Path = RESULTS
    shard: Shard | None = None
    resume: bool = False
    deadline: float = 60.0
    repeat: int = 1
    expectations: Path | None = None
    workers: int | None = None
    spread: str | None = None
    """`HOSTS` for those of a cluster's job, or the address of a Dask scheduler."""
    pytest_options: tuple[str, ...] = ()

    @staticmethod
    def of(parsed: argparse.Namespace) -> RunOptions:
        """The options that a command line holds; other commands have some of them."""
        given = {name: value for name, value in vars(parsed).items() if name in _FIELDS and value is not None}
        if type(given.get("full")) is int:
            given |= {"full": True, "seed": given["full"]}
        if "devices" in given and isinstance(given["devices"][0], str):
            given["topologies"] = given.pop("devices")
        options = RunOptions(**{name: _frozen(value) for name, value in given.items()})
        # The default itself, and no equal path of the user.
        if options.results is RESULTS and options.chosen:
            return dataclasses.replace(options, results=SELECTION)
        return options

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunOptions:
        known = {name: value for name, value in data.items() if name in _FIELDS}
        for name in _PATHS & known.keys():
            known[name] = Path(known[name]) if known[name] else None
        if known.get("shard"):
            known["shard"] = parse_shard(known["shard"])
        return RunOptions(**{name: _frozen(value) for name, value in known.items()})

    def as_json(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in _FIELDS}

    @property
    def chosen(self) -> bool:
        """Whether some cells of the selection were chosen, by name or by a pattern."""
        of_pytest = any(word.partition("=")[0] in SELECTING for word in self.pytest_options)
        return bool(self.cells or self.patterns or self.smoke or of_pytest)

    @property
    def whole(self) -> bool:
        """Whether all cells of the platform are asked for."""
        some = self.implementations not in ((), IMPLEMENTATIONS)
        return not (self.chosen or some or self.shard or self.topologies)

    @property
    def name(self) -> str:
        """The name in the files of the results: the platform, and the depth if nothing runs."""
        return name_of(self.platform, self.depth)

    @property
    def of_cells(self) -> dict[str, Any]:
        """The options on which the conclusion of a cell depends."""
        return {"deadline": self.deadline, "repeat": self.repeat}

    @property
    def recorded(self) -> dict[str, Any]:
        """The options that results keep. A folder's path says nothing about the cells, and may name a person."""
        left_out = _PATHS | {"workers", "resume", "spread", "shard", "pytest_options"}
        return {name: value for name, value in self.as_json().items() if name not in left_out}


_FIELDS = tuple(field.name for field in dataclasses.fields(RunOptions))
_PATHS = frozenset(("results", "expectations"))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path | Shard) else value


AddOption: TypeAlias = Callable[..., Any]
"""`add_argument` of an argument parser."""


def add_platform(add: AddOption) -> None:
    """Add the platform, which a file may describe."""
    add(
        "--platform",
        type=_platform,
        default="cpu",
        metavar="NAME|FILE.toml",
        help="one that JAX has a plugin for (`list --platforms`): cpu, cuda, rocm, tpu, ..., or the one that a file"
        " describes (docs/vendors.md)",
    )


def add_selection(add: AddOption) -> None:
    add_platform(add)
    add(
        "--devices",
        type=_devices,
        metavar="COUNTS|TOPOLOGIES",
        help="device counts, like 1,8; by default 1,2,4,8 on cpu, elsewhere one and as many as there are. Or"
        " topologies of several processes alone, like cpu-2x4: two processes of four devices",
    )
    add(
        "--depth",
        choices=DEPTHS,
        default=DEPTHS[0],
        help="how far the cells are taken: lower, compile (without the hardware), run; by default the deepest here",
    )
    add("--smoke", action="store_true", help="each callback, transform and value of an axis once, in a minute")
    add(
        "--full",
        type=int,
        nargs="?",
        const=0,
        metavar="SEED",
        help="all that docs/extending.md says, for hours; another seed draws other compositions and covering rows",
    )
    add(
        "--implementation",
        dest="implementations",
        action="append",
        metavar="NAME",
        help="only this implementation: hostcb, jax, or a MODULE or MODULE:NAME of your own; may be repeated",
    )


def add_running(add: AddOption) -> None:
    """Add the options for running cells, and for their expectations."""
    add(
        "--cell",
        action="append",
        dest="cells",
        metavar="ID|@FILE",
        help="this cell, or those in a file, as `list --plan` prints it; may be repeated",
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
    add(
        "--resume",
        action="store_true",
        help="go on with the run in the results folder: run cells without a verdict, or with harness_error",
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
        "--expectations",
        type=Path,
        metavar="FILE",
        help="file of known failures; by default conformance/expectations/platforms/PLATFORM.toml",
    )
    add(
        "-n",
        dest="workers",
        type=positive(int),
        help="pytest processes, each with one worker process; by default 3 on cpu, elsewhere what the platform says",
    )
    add(
        "--spread",
        type=_spread,
        metavar="ADDRESS|hosts",
        help="over the workers of a Dask cluster whose scheduler is tcp://HOST:PORT (docs/spreading.md); or over the"
        " hosts of a job of Slurm, Open MPI, Kubernetes or Cloud TPU, each with this same command (docs/spreading.md)",
    )


def _platform(text: str) -> str:
    if not text.endswith(FILE_ENDING) and (Path(text).is_file() or "/" in text):
        raise argparse.ArgumentTypeError(f"{text!r}: the name of a platform's file ends with {FILE_ENDING}")
    if not text.endswith(FILE_ENDING) and (reason := why_no_name(text)):
        raise argparse.ArgumentTypeError(reason)
    return text


def _spread(text: str) -> str:
    match = re.fullmatch(r"\w+://.+:(\d{1,5})", text, re.ASCII)
    if text != HOSTS and (not match or not 0 < int(match[1]) < 1 << 16):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither {HOSTS!r} nor the address of a Dask scheduler, like tcp://host:8786"
        )
    return text


def _devices(text: str) -> tuple[int, ...] | tuple[str, ...]:
    words = text.split(",")
    if "-" in text and not any(word.lstrip("-").isdecimal() for word in words):
        return tuple(dict.fromkeys(map(_topology, words)))
    try:
        return tuple(sorted({positive(int)(count) for count in words}))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of device counts, like 1,8, nor of topologies, like cpu-2x4,cpu-4x2"
        ) from error


def _topology(text: str) -> str:
    try:
        topology, options = parse_topology(text)
    except UnknownTopologyError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if options or topology.processes == 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no topology of several processes, like cpu-2x4; for one process give the number of devices"
        )
    return topology.name


Number = TypeVar("Number", int, float)


def positive(kind: Callable[[str], Number]) -> Callable[[str], Number]:
    """The type of an option that is a number greater than zero."""

    def number(text: str) -> Number:
        found = kind(text)
        if found <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
        return found

    return number
