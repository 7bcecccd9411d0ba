"""Cases of what a callback returns or lets through: the weak type of a number, and its kind of memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ...oracle.verdicts import Stage
from ..harness.case import Case, case


@case("jit", "id_tap io_callback io_callback_ordered", "H4 X3", functions="barrier_wait")
def kinds_of_memory(case: Case) -> None:
    """H4: beside a callback each of several results is in its own kind of memory, whatever names that."""
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
