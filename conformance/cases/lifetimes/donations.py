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
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.programs import WIDTH
from ..harness.registry import EVERY_KIND

RUNS = 3
LARGE = 1 << 18
"""This many float32 are 1 MiB: from this size on, a library may lend memory that it reuses."""


def _donating(case: Case, computation: Any) -> Any:
    """A compiled program that may write its results over its operand."""
    if case.layout == "jit":
        return jax.jit(computation, donate_argnums=0)
    if case.layout == "pjit":
        return jax.jit(computation, donate_argnums=0, in_shardings=case.split, out_shardings=case.split)
    rows = PartitionSpec("devices")
    return jax.jit(shard_map(computation, mesh=case.mesh, in_specs=rows, out_specs=rows), donate_argnums=0)


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
        return add_one(operand)

    program = _donating(case, lambda x: (case.apply(keep, x), x * -3))
    shape = (width,) if case.layout == "jit" else (len(case.devices), width)
    numbers = [np.float32(1 + run) for run in range(RUNS)]
    for number in numbers:
        operand = np.full(shape, number)
        # Some arrays of NumPy share their memory with the device's, and cannot be donated.
        given = jax.device_put(operand, None if case.layout == "jit" else case.split) + jnp.float32(0)
        result, tripled = program(given)
        for what, found, wanted in (
            ("result of the callback", result, case.expected_of(operand)),
            ("result beside it", tripled, operand * -3),
        ):
            witness = f"the {what} is {_short(found)}, expected {_short(wanted)}"
            case.check(np.array_equal(found, wanted), "result", Stage.RESULT, witness)
        case.check(given.is_deleted(), "not donated", Stage.DISPATCH, "the operand is still there")
    case.barrier()
    if case.callback.runs is Runs.ONCE:
        case.same("wrong count", Stage.CALLBACK, len(kept), RUNS * case.copies, f"kept operands of {RUNS} runs")
        case.same("torn operand", Stage.CALLBACK, {float(array.flat[0]) for array in kept}, {*numbers}, "kept, later")
    for array in kept:
        right = array.flat[0] in numbers and (array == array.flat[0]).all()
        case.check(bool(right), "torn operand", Stage.CALLBACK, f"a kept operand is {_short(array)} later")


@case("jit", "id_tap call pure_callback io_callback io_callback_ordered", "H3 H5 X2 X3")
def donated_again(case: Case) -> None:
    """JAX refuses a program whose operand was donated before; the next programs and barriers are as without that."""
    host = case.host(add_one)
    program = _donating(case, lambda x: case.apply(host, x) + np.float32(0))
    refused = 0
    for run in range(2 * RUNS):
        case.forget()
        # Of one frame, at one instruction: the library may know a dispatch by these.
        given = jnp.float32(run) + jnp.zeros(WIDTH)
        for attempt in range(2):
            try:
                result = np.asarray(program(given))
            except (RuntimeError, ValueError) as error:
                refused += 1
                witness = f"attempt {attempt} of run {run} failed: {summary(error)}"
                case.check(attempt > 0 and "delete" in str(error), "stale error", stage_of(error), witness)
            else:
                wanted = case.expected_of(np.full(WIDTH, run, np.float32))
                witness = f"attempt {attempt} of run {run} gave {result}, expected {wanted}"
                case.check(not attempt and np.array_equal(result, wanted), "result", Stage.RESULT, witness)
        case.saw(host, [np.full(WIDTH, run, np.float32)])
    case.check(refused > 0, "not refused", Stage.DISPATCH, "JAX accepted an operand that was donated before")


def _short(array: Any) -> str:
    return " ".join(repr(np.asarray(array)).split())[:120]
