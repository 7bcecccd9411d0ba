"""Takes a program as far as a machine without the hardware can: lowers it, or compiles it, and judges that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ..implementations import Implementation
from ..model.programs import Program
from ..model.transforms import Probe, Setting
from ..model.worlds import Need, RefusalError
from ..oracle.checkers import Anomaly
from ..oracle.history import Recorder
from ..oracle.lowered import Module
from ..oracle.lowered_checks import SITE_END, SITE_MARK, Wanted, compiled_sites, judge_lowered, lost_sites
from ..oracle.stages import stage_of
from ..oracle.verdicts import Stage, Verdict
from ..planning.cells import ProgramCell
from ..planning.depths import spans_devices
from ..spec.callbacks import SITES, DeviceChoice, Refusal, Runs
from ..spec.configurations import CONTEXTS, PLACEMENTS
from ..spec.depths import Depth
from ..spec.platform_targets import TARGETS, PlatformTarget
from ..spec.versions import version_matches
from .execution import REFUSED, Judgement, check_refusal, judge_error
from .private_jax import lowering_for
from .stablehlo import read_module

LOOKS_INTO_LOOPS = ">=0.12"
"""The releases of JAX that drop what nothing uses in a while loop: seen of 0.12.0.1, and not of 0.10.2."""


def lower_program(
    cell: ProgramCell, implementation: Implementation, recorder: Recorder, devices: Sequence[jax.Device]
) -> Judgement:
    target = TARGETS[cell.topology.platform]
    depth = cell.topology.depth
    wanted, refusal = _wanted(cell, target)
    impossible = target.cannot(cell.callback)
    chosen = PLACEMENTS[cell.placement].choose(devices)
    recorder.start()
    try:
        with CONTEXTS.get(cell.configuration, nullcontext)():
            lowered, module = _lowered(cell, implementation, recorder, chosen)
            compiled = lowered.compile() if depth is Depth.COMPILE else None
    except Exception as error:
        return _refused(error, refusal, impossible)
    # What nothing uses, JAX may drop before it is refused.
    if refusal is not None or (impossible and wanted.needed and _must_refuse(cell)):
        what = " and ".join(refusal or {f"{cell.callback.name} on {target.name}": None})
        done = "compiled" if compiled else "lowered"
        words = f"the program was {done}, and {what} must be refused"
        return Judgement(Verdict.FAIL, [Anomaly("not refused", Stage.LOWER, words)])
    anomalies = judge_lowered(module, wanted)
    if compiled is not None:
        anomalies += _judge_compiled(compiled, wanted, chosen)
    shown = "compiled" if compiled is not None else "lowered"
    return _judgement(anomalies, shown)


def _must_refuse(cell: ProgramCell) -> bool:
    """On one device, shards are the whole: an implementation may offer a partitioned callback there."""
    return cell.device_count > 1 or not cell.callback.partitioned


def _refused(error: Exception, refusal: dict[str, Refusal] | None, impossible: Refusal | None) -> Judgement:
    """The model, or the table of what the platform cannot have, may have said so."""
    expected = {**(refusal or {}), **({"what the platform lacks": impossible} if impossible else {})}
    if not expected:
        return Judgement(*judge_error(error, stage_of(error)))
    anomalies = check_refusal(expected, error)
    return _judgement(anomalies, REFUSED)


def _judgement(anomalies: list[Anomaly], shown: str) -> Judgement:
    return Judgement(Verdict.FAIL, anomalies) if anomalies else Judgement(shown=shown)


def _wanted(cell: ProgramCell, target: PlatformTarget) -> tuple[Wanted, dict[str, Refusal] | None]:
    """What the module must have, and the refusals that the model predicts in place of it."""
    callback = cell.callback
    refusal: dict[str, Refusal] | None = None
    needed: set[str] = set()
    possible: set[str] = set()
    try:
        # All of it is compiled as one program, also what a run would do eagerly.
        whole = Program(("jit", *cell.program.names))
        for event in whole.prediction(callback, cell.device_count, data=cell.data).events:
            possible.add(event.site)
            needed |= {event.site} if event.need is not Need.ANY_NUMBER else set()
    except RefusalError as refused:
        refusal = refused.refusals
    pure = callback.runs is Runs.IF_NEEDED
    # Older releases do not look into the body of a while loop for what nothing uses, and leave it to the compiler.
    loops = {"while_body", "while_cond"} & {*cell.program.names}
    keeps = target.transfers and loops and not version_matches(jax.__version__, LOOKS_INTO_LOOPS)
    spread = spans_devices(cell.program)
    wanted = Wanted(
        target,
        cell.device_count if spread else 1,
        needed=frozenset(needed),
        unneeded=frozenset(SITES) - possible if pure and refusal is None and not keeps else frozenset(),
        ordered=callback.ordered,
        effectful=not pure,
        in_place=callback.function in ("buffer_callback", "dlpack_callback"),
        aliased=callback.aliased,
        partitioned=callback.partitioned,
        device=cell.device_count - 1 if callback.device_choice is DeviceChoice.LAST else 0,
    )
    return wanted, refusal


def _lowered(
    cell: ProgramCell, implementation: Implementation, recorder: Recorder, chosen: Sequence[jax.Device]
) -> tuple[Any, Module]:
    probe = implementation.probe(cell.callback, recorder, chosen, cell.data)
    setting = Setting(_named(probe), chosen, PLACEMENTS[cell.placement].grid, cell.taps_tangents)
    spread = spans_devices(cell.program)
    place = NamedSharding(setting.mesh, PartitionSpec()) if spread else SingleDeviceSharding(chosen[0])
    # A pmap has a mesh of its own, which names the devices.
    operand = jax.ShapeDtypeStruct((), np.float32, sharding=None if "pmap" in cell.program.names else place)
    function = cell.program.jax_function(setting)
    # A program without operands is compiled for the CPU, and JAX drops an operand that nothing uses.
    traced = jax.jit(lambda x: (function(x), x + 1)).trace(operand)
    if cell.topology.depth is Depth.COMPILE or cell.topology.platform == "cpu":
        lowered = traced.lower()
        return lowered, read_module(lowered.compiler_ir())
    with lowering_for(cell.topology.platform) as client:
        lowered = traced.lower(lowering_platforms=(cell.topology.platform,))
    transfers = TARGETS[cell.topology.platform].transfers
    return lowered, read_module(lowered.compiler_ir(), client.callbacks if transfers else None)


def _named(probe: Probe) -> Probe:
    """The probe, with its site in the names of its operations."""

    def named(site: str, value: jax.Array) -> jax.Array:
        with jax.named_scope(f"{SITE_MARK}{site}{SITE_END}"):
            return probe(site, value)

    return named


def _judge_compiled(compiled: Any, wanted: Wanted, chosen: Sequence[jax.Device]) -> list[Anomaly]:
    """Whether it was compiled for these devices, and has kept its callbacks."""
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    devices = {device for sharding in shardings for device in sharding.device_set}
    expected = set(chosen if wanted.device_count > 1 else chosen[:1])
    anomalies = []
    # A program that names no device is compiled for the CPU, and shows nothing of this platform.
    if devices != expected:
        named = ", ".join(sorted(map(str, devices))) or "no device"
        words = f"the program was compiled for {named}, expected {', '.join(sorted(map(str, expected)))}"
        anomalies.append(Anomaly("devices", Stage.COMPILE, words))
    left = compiled_sites(compiled.as_text() or "", wanted.target)
    anomalies += [
        Anomaly("lost", Stage.COMPILE, f"the compiled program does not call back at {site!r}, which it needs")
        for site in lost_sites(wanted.needed, left)
    ]
    return anomalies
