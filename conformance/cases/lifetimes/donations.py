"""Cases of donated arguments: the runtime may reuse what a callback was given."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ...spec.jax_versions import shard_map
from ..harness.bench import WIDTH, Bench
from ..harness.case import Case, case
from ..harness.registry import EVERY_KIND

RUNS = 3
LARGE = 1 << 18
"""This many float32 are 1 MiB: from this size on, a library may lend memory that it reuses."""


def _donating(bench: Bench, computation: Any) -> Any:
    """A compiled program that may write its results over its operand."""
    if bench.layout == "jit":
        return jax.jit(computation, donate_argnums=0)
    if bench.layout == "pjit":
        return jax.jit(computation, donate_argnums=0, in_shardings=bench.split, out_shardings=bench.split)
    rows = PartitionSpec("devices")
    return jax.jit(shard_map(computation, mesh=bench.mesh, in_specs=rows, out_specs=rows), donate_argnums=0)


@case("jit", f"{EVERY_KIND} debug_callback_ordered", also="H11")
@case("pjit shard_map", "id_tap call io_callback", also="H11")
def donated(case: Case) -> None:
    """A program donates the operand that its callback keeps, and writes its own result over that memory."""
    for width in (WIDTH, LARGE) if case.layout == "jit" else (WIDTH,):
        _check_donated(case, width)
    case.barrier()


def _check_donated(case: Case, width: int) -> None:
    kept: list[Any] = []

    def keep(operand: Any) -> Any:
        kept.append(np.asarray(operand))
        return np.asarray(operand) + np.float32(1)

    program = _donating(case.bench, lambda x: (case.call_back(keep, x), x * -3))
    shape = (width,) if case.layout == "jit" else (len(case.devices), width)
    operands = [np.full(shape, 1 + run, np.float32) for run in range(RUNS)]
    sharding = None if case.layout == "jit" else case.bench.split
    for operand in operands:
        # Some arrays of NumPy share their memory with the device's, and cannot be donated.
        given = jax.device_put(operand, sharding) + jnp.float32(0)
        result, tripled = program(given)
        for what, found, wanted in (
            ("result of the callback", result, case.bench.expected(case.callback, operand)),
            ("result beside it", tripled, operand * -3),
        ):
            if not np.array_equal(found, wanted):
                witness = f"the {what} is {_short(found)}, expected {_short(wanted)}"
                case.wrong("result", Stage.RESULT, witness)
        if not given.is_deleted():
            case.wrong("not donated", Stage.DISPATCH, "the operand is still there")
    case.implementation.barrier()
    if case.callback.runs is Runs.ONCE and len(kept) != RUNS * case.copies:
        case.wrong("wrong count", Stage.CALLBACK, f"{len(kept)} operands were kept in {RUNS} runs")
    allowed = {float(operand.flat[0]) for operand in operands}
    numbers = {float(array.flat[0]) for array in kept}
    if case.callback.runs is Runs.ONCE and numbers != allowed:
        witness = f"the kept operands are of {sorted(numbers)} later, expected {sorted(allowed)}"
        case.wrong("torn operand", Stage.CALLBACK, witness)
    for array in kept:
        if float(array.flat[0]) not in allowed or not (array == array.flat[0]).all():
            case.wrong("torn operand", Stage.CALLBACK, f"a kept operand is {_short(array)} later")


@case("jit", "id_tap call pure_callback io_callback io_callback_ordered", "H3 H5 X2 X3")
def donated_again(case: Case) -> None:
    """JAX refuses a program whose operand was donated before; the next programs and barriers are as without that."""
    seen: list[float] = []

    def host(operand: Any) -> Any:
        seen.append(float(np.asarray(operand).ravel()[0]))
        return np.asarray(operand) + np.float32(1)

    program = _donating(case.bench, lambda x: case.call_back(host, x) + np.float32(0))
    refused = 0
    for run in range(2 * RUNS):
        # Of one frame, at one instruction: the library may know a dispatch by these.
        given = jnp.float32(run) + jnp.zeros(WIDTH)
        for attempt in range(2):
            try:
                result = np.asarray(program(given))
            except (RuntimeError, ValueError) as error:
                refused += 1
                if not attempt or "delete" not in str(error):
                    witness = f"attempt {attempt} of run {run} failed: {summary(error)}"
                    case.wrong("stale error", stage_of(error), witness)
            else:
                wanted = case.bench.expected(case.callback, np.full(WIDTH, run, np.float32))
                if attempt or not np.array_equal(result, wanted):
                    witness = f"attempt {attempt} of run {run} gave {result}, expected {wanted}"
                    case.wrong("result", Stage.RESULT, witness)
        case.barrier()
    if seen != [float(run) for run in range(2 * RUNS)]:
        case.wrong("wrong count", Stage.CALLBACK, f"the callback saw {seen} in {2 * RUNS} runs")
    if not refused:
        case.wrong("not refused", Stage.DISPATCH, "JAX accepted an operand that was donated before")


def _short(array: Any) -> str:
    return " ".join(repr(np.asarray(array)).split())[:120]
