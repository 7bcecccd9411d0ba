"""Operands are the callback's own, also those of donated arguments: it may keep and change them, and results stay."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ...spec.callbacks import Runs
from ...spec.jax_versions import shard_map
from ..harness.case import Case, NotApplicableError, case
from ..harness.hosts import add_one
from ..harness.programs import WIDTH
from ..harness.registry import EVERY_KIND, OF_ARRAYS, OF_ARRAYS_OF_JAX

RUNS = 10
LARGE = 1 << 18
"""This many float32 are 1 MiB: from this size on, a library may lend memory that it reuses."""

PARTS = 512
"""An operand of so many times the usual one is no small piece of memory, and is given back at once."""

LARGE_RUNS = 6
ALIGNMENT = 64


@case("jit", "id_tap call", "H11")
@case("jit", OF_ARRAYS_OF_JAX, also="H11")
def keeps_its_operand(case: Case) -> None:
    """The operand of a callback does not change, whichever programs run later."""
    host = case.host(add_one)
    program = case.program(host)
    operands = [case.operand + np.float32(10 * run) for run in range(RUNS)]
    for operand in operands:
        jax.block_until_ready(program(operand))
    case.barrier()
    gc.collect()
    double = case.compile(lambda x: x * 2)
    for operand in operands:
        jax.block_until_ready(double(operand))
    case.saw(host, operands)


@case("pjit", "debug_callback debug_callback_partitioned", "H11 X4", minimum_devices=2)
def keeps_its_parts(case: Case) -> None:
    """A callback on each device changes its part of an operand, and keeps it; no later program changes it."""
    kept: list[tuple[Any, Any]] = []

    def keep(operand: Any) -> None:
        part = np.asarray(operand)
        # An array of JAX cannot be changed.
        if isinstance(operand, np.ndarray):
            part += 1
        kept.append((part, part.copy()))

    def program(x: Any) -> Any:
        # No argument and no result: memory of the program, which belongs to others when it has ended.
        between = jnp.tile(x, PARTS) * 3
        case.apply(keep, between)
        return between.sum() + x

    compiled = case.compile(program)
    for run in range(RUNS):
        jax.block_until_ready(compiled(case.operand + np.float32(10 * run)))
    case.barrier()
    gc.collect()
    case.check(len(kept) >= RUNS, "lost", Stage.CALLBACK, f"{RUNS} programs ran, and {len(kept)} callbacks")
    torn = next(((part, copy) for part, copy in kept if not np.array_equal(part, copy)), None)
    case.check(torn is None, "torn operand", Stage.CALLBACK, f"a callback kept and was given {torn}")


@case("jit pjit", "id_tap call", "H11")
@case("jit", OF_ARRAYS_OF_JAX, also="H11")
def changes_its_operand(case: Case) -> None:
    """A callback can change the NumPy array that it is given, in jit and outside, and no other code sees the change."""

    def change(operand: Any) -> Any:
        result, array = add_one(operand), np.asarray(operand)
        # An array of JAX cannot be changed.
        writeable = array.flags.writeable or not isinstance(operand, np.ndarray)
        case.check(writeable, "read-only operand", Stage.CALLBACK, "the NumPy array cannot be changed")
        if array.flags.writeable:
            array[...] = -1
        return result

    def program(x: Any) -> Any:
        return case.apply(change, x) + 2 * x

    compiled, on_device = case.compile(program), jnp.asarray(case.operand)
    for run in (compiled, compiled, program):
        case.gives(case.expected + 2 * case.operand, run, on_device)
    case.barrier()
    case.gives(case.operand, np.asarray, on_device)


_WAYS_TO_KEEP: tuple[Callable[[Any], Any], ...] = (
    lambda array: array,
    # A view keeps the memory of an array, too, after the array itself is gone.
    lambda array: array[5:],
    lambda array: array.reshape(2, -1).T,
    lambda array: memoryview(array),
)


@case("jit", OF_ARRAYS, "H11")
# JAX's own callbacks hang here: see case.reads_large_operand.
@case("pmap pjit shard_map", "id_tap call", "H11")
def keeps_large_operands(case: Case) -> None:
    """Kept operands of 1 MiB do not change either, several of them in a tree, and views of them."""
    kept: list[tuple[float, Any]] = []

    def keep(operand: Any) -> Any:
        first, (second, small) = operand["first"], operand["others"]
        number = float(np.asarray(small).ravel()[0])
        way = _WAYS_TO_KEEP[int(number) % len(_WAYS_TO_KEEP)]
        kept.append((number, way(np.asarray(first))))
        kept.append((-number, way(np.asarray(second))))
        return add_one(small)

    def program(x: Any) -> Any:
        first = x.ravel()[0]
        # No two arrays of the tree are alike.
        operand = {"first": jnp.full(LARGE, first), "others": (jnp.full(LARGE + 2 * WIDTH, -first), x)}
        result = case.apply(keep, operand, jax.ShapeDtypeStruct(jnp.shape(x), np.float32))
        return result if case.callback.returns_new_value else result["others"][1]

    compiled = case.compile(program)
    for run in range(LARGE_RUNS):
        # Release some operands, so that their memory is reused while others are kept.
        del kept[1 :: LARGE_RUNS - 1]
        operand = case.operand + np.float32(1 + 100 * run)
        case.gives(case.expected_of(operand), compiled, operand)
    case.barrier()
    case.check(len(kept) >= LARGE_RUNS, "lost", Stage.CALLBACK, f"{len(kept)} operands were kept")
    for number, view in kept:
        wrong = np.asarray(view)[np.asarray(view) != number]
        if wrong.size:
            witness = f"{wrong.size} elements of the operand {number} that was kept are others, as {wrong[0]}"
            case.wrong("torn operand", Stage.CALLBACK, witness)
            break


@case("jit", "call pure_callback io_callback io_callback_ordered", "H3 H11 X2 X3")
def changes_its_result(case: Case) -> None:
    """A function may change the array that it has returned: results that a program has stay as they were."""
    # JAX shares aligned memory of NumPy arrays where it can.
    size = 1 << 16
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    shared = memory[start : start + size].view(np.float32)

    def answer(operand: Any) -> Any:
        shared[...] = np.asarray(operand).ravel()[0]
        return shared

    def apply(x: Any) -> Any:
        return case.apply(answer, x, shared)

    free = jnp.zeros(())
    chosen = jax.device_put(np.float32(0), case.devices[0])
    everywhere = jax.device_put(np.float32(0), NamedSharding(case.mesh, PartitionSpec()))
    for run, operand in ((apply, free), (apply, chosen), (apply, everywhere), (jax.jit(apply), free)):
        results = [jax.block_until_ready(run(operand + number)) for number in range(3)]
        case.barrier()
        for number, result in enumerate(results):
            case.same("result", Stage.RESULT, {*np.asarray(result).tolist()}, {float(number)})


DONATED_RUNS = 3


def _needs_donation(case: Case) -> None:
    """JAX has a list of the platforms on which it donates. A program without a callback shows whether this is one."""
    lowered = jax.jit(lambda x: x * -3, donate_argnums=0).lower(case.operand).as_text()
    if "tf.aliasing_output" not in lowered and "jax.buffer_donor" not in lowered:
        raise NotApplicableError(f"JAX donates no operand on {case.devices[0].platform}")


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
    """An operand that a callback keeps stays as it was, though the program donates it and writes a result over it."""
    _needs_donation(case)
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
    numbers = [np.float32(1 + run) for run in range(DONATED_RUNS)]
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
        what = f"kept operands of {DONATED_RUNS} runs"
        case.same("wrong count", Stage.CALLBACK, len(kept), DONATED_RUNS * case.copies, what)
        case.same("torn operand", Stage.CALLBACK, {float(array.flat[0]) for array in kept}, {*numbers}, "kept, later")
    for array in kept:
        right = array.flat[0] in numbers and (array == array.flat[0]).all()
        case.check(bool(right), "torn operand", Stage.CALLBACK, f"a kept operand is {_short(array)} later")


@case("jit", "id_tap call pure_callback io_callback io_callback_ordered", "H3 H5 X2 X3")
def donated_again(case: Case) -> None:
    """JAX refuses a program whose operand was donated before; the next programs and barriers are as without that."""
    _needs_donation(case)
    host = case.host(add_one)
    program = _donating(case, lambda x: case.apply(host, x) + np.float32(0))
    for run in range(2 * DONATED_RUNS):
        case.forget()
        # Of one frame, at one instruction: the library may know a dispatch by these.
        given = jnp.float32(run) + jnp.zeros(WIDTH)
        for attempt in range(2):
            try:
                result = np.asarray(program(given))
            except (RuntimeError, ValueError) as error:
                witness = f"attempt {attempt} of run {run} failed: {summary(error)}"
                case.check(attempt > 0 and "delete" in str(error), "stale error", stage_of(error), witness)
                continue
            if attempt:
                witness = f"in run {run} JAX accepted an operand that was donated before"
                case.wrong("not refused", Stage.DISPATCH, witness)
                return
            wanted = case.expected_of(np.full(WIDTH, run, np.float32))
            witness = f"run {run} gave {result}, expected {wanted}"
            case.check(np.array_equal(result, wanted), "result", Stage.RESULT, witness)
        case.saw(host, [np.full(WIDTH, run, np.float32)])


def _short(array: Any) -> str:
    return " ".join(repr(np.asarray(array)).split())[:120]
