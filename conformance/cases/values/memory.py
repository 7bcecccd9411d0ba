"""Operands and results in each kind of memory, and results in any layout, small and large: their memory is copied in
several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from ...oracle.verdicts import Stage
from ...spec.thresholds import BLOCK, PAST_CACHES
from ..harness.case import Case, case
from ..harness.hosts import add_one, error_of
from ..harness.registry import EVERY_KIND, WITH_RESULTS

ROUNDS = 2


@case("pjit", WITH_RESULTS, "H3 H10 X2 X3")
@case("jit", f"{WITH_RESULTS} io_callback_ordered dlpack_callback", "H3 X2 X3 D1")
def strided_results(case: Case) -> None:
    """Results that are not row-major, beside one that is: their elements are where they belong."""
    sharding = case.split if case.layout == "pjit" else None
    types = ("int32", "float32", "complex64", "int4")
    for name in types[:3] if case.callback.function == "dlpack_callback" else types:
        matrix = (np.arange(12) % 8).reshape(3, 4).astype(np.dtype(jnp.dtype(name)))
        results = {
            "plain": matrix,
            "transposed": np.asfortranarray(matrix),
            "backwards": matrix[::-1, ::-1].copy()[::-1, ::-1],
            "every other": np.repeat(matrix, 2, axis=1)[:, ::2],
            "broadcast": np.broadcast_to(matrix[0], (3, 4)),
            "masked": np.ma.masked_array(matrix, mask=np.zeros(matrix.shape, bool)),
        }
        like = {form: np.array(each) for form, each in results.items()}
        program = jax.jit(lambda x, r=results, s=like: case.apply(lambda _: r, x, s), in_shardings=sharding)
        for _ in range(ROUNDS):
            case.gives(like, program, case.operand, what=name)


@case("jit", "call pure_callback io_callback io_callback_ordered dlpack_callback", also="X2 X3")
@case("pjit", "call")
def row_for_a_column(case: Case) -> None:
    """A result of the right size and another shape is refused, alone and in a tree, and none is stretched to fit."""
    size = case.operand.size
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "a row for a column": ((1, size), (size, 1)),
        "an axis more": ((1, size), (size,)),
        "a number": ((), (size,)),
        "one element for many": ((1,), (size,)),
    }
    for what, (returned, asked) in shapes.items():
        for beside in ((), (np.float32(0),)):
            result, like = ((np.zeros(shape, np.float32), *beside) for shape in (returned, asked))
            if not beside:
                (result,), (like,) = result, like

            def through(x: Any, result: Any = result, like: Any = like) -> Any:
                return jax.tree.leaves(case.apply(lambda _: result, x, like))[0]

            error = error_of(case.compile(through), case.operand)
            case.drain()
            witness = f"{what}{' in a tree' if beside else ''} was delivered as a result"
            case.check(error is not None, "swallowed error", Stage.RESULT, witness)


@case("jit", f"{EVERY_KIND} debug_callback_ordered", also="H4")
@case("pjit", "id_tap call pure_callback", also="H4")
def memory_kinds(case: Case) -> None:
    """Operands and results in each of the device's memories, such as the host's, have their values and their place."""
    sharding: Any = case.split if case.layout == "pjit" else SingleDeviceSharding(case.devices[0])
    kinds = [memory.kind for memory in case.devices[0].addressable_memories()]
    operand = case.operand

    def check(there: Mapping[str, Any]) -> None:
        hosts = {kind: case.host(add_one, name=f"the callback of {kind}") for kind in there}
        through = lambda xs: {kind: case.apply(hosts[kind], x) for kind, x in xs.items()}
        operands = jax.jit(through), {kind: jax.device_put(operand, place) for kind, place in there.items()}
        results = jax.jit(through, in_shardings=sharding, out_shardings=there), dict.fromkeys(there, operand)
        for what, (program, given) in {"operands": operands, "results": results}.items():
            case.forget()
            found = jax.block_until_ready(program(given))
            for kind, host in hosts.items():
                case.gives(case.expected, np.asarray, found[kind], what=f"{what} in {kind}")
                if what == "results":
                    case.same("result", Stage.RESULT, found[kind].sharding.memory_kind, kind)
                case.saw(host, [operand])

    case.together({kind: sharding.with_memory_kind(kind) for kind in kinds}, check)
    if case.layout == "jit":
        _several_results(case)


def _several_results(case: Case) -> None:
    """Beside a callback each of several results is in its own kind of memory, whatever names that."""
    device = case.devices[0]
    usual = device.default_memory().kind
    other = next((memory.kind for memory in device.addressable_memories() if memory.kind != usual), None)
    if other is None:
        return
    there, here = SingleDeviceSharding(device, memory_kind=other), SingleDeviceSharding(device)
    host, operand = case.host(), np.arange(3, dtype=np.float32)

    def moved(kinds: str) -> Any:
        def program(x: Any) -> Any:
            products = zip(placed(kinds, x), kinds, strict=True)
            return [jax.device_put(each, there) if kind == "t" else each for each, kind in products]

        return jax.jit(program)

    def placed(kinds: str, x: Any) -> Any:
        x = case.apply(host, x)
        return [x * (number + 2) for number in range(len(kinds))]

    for kinds in ("tht", "hht"):
        shardings = [there if kind == "t" else here for kind in kinds]
        for way, program in (
            ("by device_put", moved(kinds)),
            ("by the program's shardings", jax.jit(partial(placed, kinds), out_shardings=shardings)),
        ):
            with case.part(f"results in {kinds} {way} (t: {other}, h: {usual})"):
                case.forget()
                results = jax.block_until_ready(program(operand))
                found = "".join("t" if each.sharding.memory_kind == other else "h" for each in results)
                case.same("result", Stage.RESULT, found, kinds)
                case.gives([operand * (number + 2) for number in range(len(kinds))], lambda r=results: r)
                case.saw(host, [operand])


COLUMNS = 513
"""No multiple of the blocks in which a runtime may copy or transpose."""

FORMS: dict[str, Callable[[Any], Any]] = {
    "in Fortran order": np.asfortranarray,
    "upside down": lambda array: array[::-1].copy()[::-1],
    "right to left": lambda array: array[:, ::-1].copy()[:, ::-1],
    "every second row of another": lambda array: np.repeat(array, 2, axis=0)[::2],
    "every second column of another": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "a part of the columns of another": lambda array: np.hstack([array, array])[:, : array.shape[1]],
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "not aligned": lambda array: (
        np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)
    ),
}


@case("jit", f"{WITH_RESULTS} dlpack_callback", "H3 X2 X3 D1")
def large_forms_of_results(case: Case) -> None:
    """Results in each order of their memory reach the device as they are, on both sides of the thresholds of copies."""
    for nbytes in (BLOCK // 2, PAST_CACHES + COLUMNS * 4):
        rows = nbytes // 4 // COLUMNS
        wanted = np.arange(rows * COLUMNS, dtype=np.float32).reshape(rows, COLUMNS)
        for what, form in FORMS.items():
            result = form(wanted)
            program = jax.jit(lambda x, r=result, w=wanted: case.apply(lambda _: r, x, w))
            for run in range(2):
                wrong = int((np.asarray(program(np.float32(run))) != wanted).sum())
                case.same("result", Stage.RESULT, wrong, 0, f"wrong ones of {wanted.size} numbers {what} in run {run}")
