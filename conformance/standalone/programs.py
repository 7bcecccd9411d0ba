"""A cell's program as the text of a file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..model.programs import INPUTS, Prediction, strides
from ..model.transforms.base import Place
from ..model.worlds import RefusalError
from ..planning.cells import CaseCell, Cell, ProgramCell, TableCell
from ..spec.callbacks import SITES, Refusal
from ..spec.configurations import JIT_DISABLED, PLACEMENTS, X64
from . import NOT_CHECKED
from .callbacks import CallbackSource
from .judging import Expected, refusal_source
from .operands import Shown

HANG_SECONDS = 60

CONFIGURED = {
    X64: 'jax.config.update("jax_enable_x64", True)',
    "gspmd": 'jax.config.update("jax_use_shardy_partitioner", False)',
}

SHARD_MAP = """\
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map"""

MODULES = ("functools", "sys", "zlib")
"""Modules of Python. A program imports those that it uses."""


class NotStandaloneError(ValueError):
    """A cell without a program that stands alone, and why."""


def standalone_program(cell: Cell) -> str:
    """The program of a cell, without an import of this package; raises `NotStandaloneError`."""
    if isinstance(cell, CaseCell):
        raise NotStandaloneError("the function of a case is code of the suite")
    if isinstance(cell, TableCell):
        programs = ", ".join(program.id for program in cell.programs)
        raise NotStandaloneError(f"it is an entry of a table, whose programs have one: {programs}")
    if cell.topology.processes > 1:
        raise NotStandaloneError(f"it runs in {cell.topology.processes} processes, which the suite starts")
    if cell.implementation not in ("hostcb", "jax"):
        raise NotStandaloneError("only programs of hostcb and of JAX's own callbacks can be written out")
    if cell.callback.function == "id_print":
        raise NotStandaloneError("it prints in a form of hostcb's own")
    return _Program(cell).text()


def _sites(cell: ProgramCell) -> list[str]:
    by_transform = {"forward_end": "grad", "cotangent": "custom_vjp", "tangent": "custom_jvp"}
    return [site for site in SITES if site not in by_transform or by_transform[site] in cell.program.names]


class _Program:
    def __init__(self, cell: ProgramCell) -> None:
        self.cell = cell
        self.placement = PLACEMENTS[cell.placement]
        count = cell.topology.device_count
        self.first = self.placement.choose(range(count))[0]
        try:
            self.prediction: Prediction | None = cell.prediction
            self.refusals: Mapping[str, Refusal] = {}
        except RefusalError as refused:
            self.prediction, self.refusals = None, refused.refusals
        events = self.prediction.events if self.prediction else ()
        leaves = [leaf for event in events for leaf in event.leaves]
        self.shown = Shown(cell.data, cell.configuration == X64, leaves)
        self.callback = CallbackSource(
            cell.implementation,
            cell.callback,
            cell.data,
            self.shown,
            cell.device_count - 1,
            _sites(cell),
            "vmap" in cell.program.names,
        )

    def text(self) -> str:
        body = "\n\n".join((*self._functions(), self._end()))
        return "\n".join((self._head(body), body)) + "\n"

    def _head(self, body: str) -> str:
        """The environment, the imports and the devices of a program with this body."""
        modules = [name for name in MODULES if re.search(rf"\b{name}\.", body)]
        meshed = bool(re.search(r"\bmesh\b", body))
        environment = self.cell.topology.environment({}, quick=())
        settings = ", ".join(f'{name}="{value}"' for name, value in environment.items() if value)
        lines = [
            f"# {self.cell.id}",
            "# It exits with 0 if all is as expected; otherwise it prints what differs, and exits with 1.",
            *self._unchecked(),
            f"import {', '.join(sorted(('faulthandler', 'os', *modules)))}",
            f"os.environ.update({settings})",
            "import jax",
            "import jax.numpy as jnp",
            "import numpy as np",
            *(["from jax.sharding import Mesh, NamedSharding, PartitionSpec"] if meshed else ()),
            *(["from typing import Any"] if "Any" in body else ()),
            *filter(None, self.callback.imports()),
            *([SHARD_MAP] if "shard_map(" in body else ()),
            "",
            f"faulthandler.dump_traceback_later({HANG_SECONDS}, exit=True)  # if it hangs",
        ]
        if self.cell.configuration in CONFIGURED:
            lines.append(CONFIGURED[self.cell.configuration])
        if meshed or re.search(r"\bdevices\b(?!\()", body):
            lines.append(f"devices = {self._devices()}")
        if meshed:
            shape, names = (".reshape(2, -1)", '("rows", "columns")') if self.placement.grid else ("", '("devices",)')
            lines.append(f"mesh = Mesh(np.array(devices){shape}, {names})")
        return "\n".join((*lines, "calls = []", ""))

    def _unchecked(self) -> list[str]:
        """What the cell's judgement in the suite has, and this program's has not; a refusal has no more to check."""
        if self.prediction is None:
            return []
        # What is printed has no dtype either.
        numbers = self.shown.numbers or any(self.cell.callback.at(site).prints for site in _sites(self.cell))
        dtypes = "dtypes of operands and of the program's results" if numbers else "dtypes of the program's results"
        return [f"# Not checked: {', '.join((dtypes, *NOT_CHECKED))}."]

    def _devices(self) -> str:
        topology = self.cell.topology
        platform = "" if topology.platform == "cpu" else f'"{topology.jax_name}"'
        return f"jax.devices({platform})[{self.first}:{self.first + self.cell.device_count}]"

    def _functions(self) -> list[str]:
        function = "function"
        functions = [
            *self.callback.functions(),
            "def function(x):\n"
            '    y = callback("first", x * 2 + 1)\n'
            '    callback("unused", x * 4 + 3)\n'
            '    return callback("last", y * x)',
        ]
        used: list[str] = []
        transforms = self.cell.program.transforms
        count = self.cell.device_count
        for transform, stride in reversed([*zip(transforms, strides(transforms), strict=False)]):
            used.append(transform.name)
            again = f"_{used.count(transform.name)}" if used.count(transform.name) > 1 else ""
            place = Place(f"in_{transform.name}{again}", count, range(count), self.cell.taps_tangents)
            functions.append(transform.source(function, place, stride))
            function = place.name
        self.outermost = function
        return functions

    def _run(self) -> list[str]:
        inputs = ", ".join(f"{number:g}" for number in INPUTS)
        run = f"results = jax.device_get([{self.outermost}(jnp.float32(number)) for number in ({inputs})])"
        contexts = ["jax.default_device(devices[0])"] * (self.first > 0)
        contexts += ["jax.disable_jit()"] * (self.cell.configuration == JIT_DISABLED)
        return [f"with {', '.join(contexts)}:", f"    {run}"] if contexts else [run]

    def _end(self) -> str:
        """The run of the program, and the judgement."""
        if self.prediction is None:
            return refusal_source(self.cell.callback, self.refusals, self._run())
        lines = [
            *self._run(),
            "hostcb.barrier_wait()" if self.cell.implementation == "hostcb" else "jax.effects_barrier()",
        ]
        expected = Expected(self.cell.callback, self.cell.data, self.shown, self.prediction, self.first)
        return "\n".join(lines) + "\n\n" + expected.source()
