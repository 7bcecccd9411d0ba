"""Cases of what a callback returns or lets through: the weak type of a number, and its kind of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, case

NARROW = ("float16", "bfloat16", "int8", "complex64", "float8_e4m3fn")
"""Types that a number of Python does not change, and one of a strong type does."""


@case("jit", "id_tap io_callback io_callback_ordered", "H4 X3", functions="barrier_wait")
def kinds_of_memory(case: Case) -> None:
    """H4: beside a callback each of several results is in its own kind of memory, whatever names that."""
    device = case.devices[0]
    usual = device.default_memory().kind
    other = next((memory.kind for memory in device.addressable_memories() if memory.kind != usual), None)
    if other is None:
        return
    there, here = SingleDeviceSharding(device, memory_kind=other), SingleDeviceSharding(device)
    seen: list[list[float]] = []

    def note(operand: Any) -> Any:
        seen.append(np.asarray(operand).tolist())
        return np.asarray(operand)

    def moved(kinds: str) -> Callable[[Any], Any]:
        def program(x: Any) -> Any:
            x = case.call_back(note, x)
            products = (x * (number + 2) for number in range(len(kinds)))
            return [
                jax.device_put(each, there) if kind == "t" else each for each, kind in zip(products, kinds, strict=True)
            ]

        return jax.jit(program)

    def placed(kinds: str) -> Callable[[Any], Any]:
        def program(x: Any) -> Any:
            x = case.call_back(note, x)
            return [x * (number + 2) for number in range(len(kinds))]

        return jax.jit(program, out_shardings=[there if kind == "t" else here for kind in kinds])

    operand = np.arange(3, dtype=np.float32)
    for way, make in (("by device_put", moved), ("by the program's shardings", placed)):
        for kinds in ("tht", "hht"):
            seen.clear()
            label = f"results in {kinds} {way}"
            try:
                results = jax.block_until_ready(make(kinds)(operand))
            except Exception as error:
                case.wrong("error", stage_of(error), f"{label}: {summary(error)}")
                continue
            case.barrier()
            found = "".join("t" if each.sharding.memory_kind == other else "h" for each in results)
            values = [np.asarray(each).tolist() for each in results]
            wanted = [(operand * (number + 2)).tolist() for number in range(len(kinds))]
            if found != kinds or values != wanted:
                witness = f"{label} (t: {other}, h: {usual}) came in {found}, with {values}"
                case.wrong("result", Stage.RESULT, witness)
            if seen != [operand.tolist()]:
                case.wrong("wrong count", Stage.CALLBACK, f"{label}: it saw {seen}")
