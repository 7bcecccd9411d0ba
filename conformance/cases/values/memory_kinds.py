"""Operands and results in each kind of memory of a device, such as the host's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ...oracle.verdicts import Stage
from ..harness.case import Case, case
from ..harness.hosts import add_one
from ..harness.registry import EVERY_KIND


@case("jit", f"{EVERY_KIND} debug_callback_ordered", also="H4")
@case("pjit", "id_tap call pure_callback", also="H4")
def memory_kinds(case: Case) -> None:
    """Operands and results in each of the device's memories, such as the host's."""
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
