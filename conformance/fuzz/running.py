"""Runs a program with an implementation's callbacks, which append to the suite's history."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..implementations import Implementation
from ..implementations.host_functions import PrintedCallbacks
from ..oracle.history import Event, Recorder
from ..spec.external_callbacks import callback_named
from .description import BATCHABLE, KINDS, MODULUS, WITH_RESULTS, Program
from .host import answer
from .inputs import inputs_of
from .neutral import COMMON
from .printed import FORMAT, PrintStream, printed_values
from .source import VALUE_AND_JVP, function_of

AXIS = "devices"


@dataclass(frozen=True)
class HostFunction:
    """Records its operands, and returns the answer if a result is wanted. Equal ones make equal programs."""

    label: int
    answers: bool
    recorder: Recorder = field(repr=False)

    def __call__(self, operand: Any, transforms: Any = ()) -> Any:
        with self.recorder.callback(str(self.label), operand, transforms):
            return answer(self.label, jax.tree.leaves(operand)[1]) if self.answers else None


@dataclass(frozen=True)
class Ran:
    """What a program did in one round: its results on each device, and its events, in some runs."""

    results: tuple[tuple[Any, ...], ...]
    """For each run the results, each with a leading axis for the devices that run it each for itself."""
    events: tuple[Event, ...]


class Running:
    """A program, ready to run; `rounds` runs it."""

    def __init__(self, program: Program, implementation: Implementation, devices: Sequence[jax.Device]) -> None:
        self.program = program
        self.implementation = implementation
        self.devices = list(devices)[: program.devices]
        self.recorder = Recorder()
        names: dict[str, Any] = {
            **COMMON,
            **{kind: functools.partial(self._callback, kind) for kind in KINDS},
            **collectives(program.devices),
            "vmap": jax.vmap,
            "value_and_grad": jax.value_and_grad,
            "jax": jax,
            "custom_jvp": jax.custom_jvp,
            "custom_vjp": jax.custom_vjp,
        }
        exec(compile(VALUE_AND_JVP + function_of(program), "<program>", "exec"), names)
        self.function = names["program"]
        self.compiled = self._compiled()

    def _callback(self, kind: str, label: int, where: Any, tree: Any, vmap_method: str = "sequential") -> Any:
        """The callback of a site; its operand is the device's number and the tree."""
        function = HostFunction(label, kind in WITH_RESULTS, self.recorder)
        first, operand = jax.tree.leaves(tree)[0], (where, tree)
        wanted = jax.ShapeDtypeStruct(jnp.shape(first), first.dtype)
        if kind == "id_tap":
            _, tapped = self.implementation.tap(function, operand)
            return jax.tree.leaves(tapped)[0]
        if kind == "id_print":
            stream = PrintStream(label, self.recorder, type(tree), len(tree))
            _, printed = self.implementation.print_labelled(operand, what=label, output_stream=stream)
            return jax.tree.leaves(printed)[0]
        if kind.startswith("debug_print"):
            leaves = jax.tree.leaves(operand)
            text = FORMAT.format(label, "; ".join("{}" for _ in leaves))
            self.implementation.print_as(text, *leaves, ordered=kind == "debug_print_ordered")
            return first
        if kind == "call":
            return self.implementation.call(function, operand, wanted, vmap_method=vmap_method)
        callback = callback_named(kind)
        if kind in BATCHABLE:
            callback = replace(callback, vmap_method=vmap_method)
        result = self.implementation.invoke(callback, function, operand, wanted, self.devices)
        return result if kind in WITH_RESULTS else first

    def _compiled(self) -> Callable[..., Any]:
        program, mesh = self.program, Mesh(np.asarray(self.devices), (AXIS,))
        # The number of the device is the first operand.
        donated = tuple(place for place, one in enumerate(program.inputs, 1) if one.donated)
        if program.layout == "eager":
            return self.function
        if program.layout == "jit":
            return jax.jit(self.function, donate_argnums=donated)
        if program.layout == "pmap":
            return jax.pmap(self.function, axis_name=AXIS, devices=self.devices, donate_argnums=donated)
        if program.layout == "mesh":
            whole = NamedSharding(mesh, PartitionSpec())
            split = NamedSharding(mesh, PartitionSpec(AXIS))
            shardings = (whole, *(split if one.name[0] == "v" else whole for one in program.inputs))
            return jax.jit(self.function, in_shardings=shardings, donate_argnums=donated)

        def of_shard(*operands: Any) -> Any:
            return jax.tree.map(lambda one: one[None], self.function(*(one[0] for one in operands)))

        by_device = PartitionSpec(AXIS)
        mapped = jax.shard_map(of_shard, mesh=mesh, in_specs=by_device, out_specs=by_device, check_vma=False)
        return jax.jit(mapped, donate_argnums=donated)

    def operands(self) -> list[Any]:
        program = self.program
        if program.layout in ("pmap", "shard_map"):
            each = [inputs_of(program, device) for device in range(program.devices)]
            return [jnp.asarray(np.stack(one)) for one in zip(*each, strict=True)]
        return [jnp.asarray(one) for one in inputs_of(program, 0)]

    def round(self, runs: int) -> Ran:
        """Dispatch the program so often without waiting in between; then wait at the barrier."""
        operands = [self.operands() for _ in range(runs)]
        self.recorder.start()
        PrintedCallbacks.install(self.recorder, printed_values)
        with warnings.catch_warnings():
            # A program need not use what is donated.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            results = [self.compiled(*one) for one in operands]
        self.implementation.barrier()
        found = tuple(tuple(np.asarray(one) for one in result) for result in results)
        # Events after the barrier are late, and missing.
        return Ran(found, self.recorder.history().events)


def collectives(devices: int) -> dict[str, Any]:
    def wrap(x: Any) -> Any:
        return lax.rem(x, x.dtype.type(MODULUS))

    def gathered(x: Any) -> Any:
        every = lax.all_gather(x, AXIS)
        weighted = [every[place] * np.float32(place + 1) for place in range(devices)]
        return wrap(functools.reduce(lax.add, weighted))

    turn = [(place, (place + 1) % devices) for place in range(devices)]
    return {
        "psum": lambda x: wrap(lax.psum(x, AXIS)),
        "all_gather": gathered,
        "ppermute": lambda x: lax.ppermute(x, AXIS, turn),
    }
