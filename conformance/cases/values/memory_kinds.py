"""Operands and results in each kind of memory of a device, such as the host's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ...oracle.stages import stage_of, summary
from ...oracle.verdicts import Stage
from ..harness.case import Case, add_one, case
from ..harness.registry import EVERY_KIND


@case("jit", f"{EVERY_KIND} debug_callback_ordered", also="H4")
@case("pjit", "id_tap call pure_callback", also="H4")
def memory_kinds(case: Case) -> None:
    """Operands and results in each of the device's memories, such as the host's."""
    sharding: Any = case.bench.split if case.layout == "pjit" else SingleDeviceSharding(next(iter(case.devices)))
    memories = [memory.kind for memory in case.devices[0].addressable_memories()]
    for kind in memories:
        there = sharding.with_memory_kind(kind)
        seen: list[Any] = []

        def host(operand: Any, seen: list[Any] = seen) -> Any:
            seen.append(np.array(operand))
            return np.asarray(operand) + np.float32(1)

        def plain(x: Any, host: Any = host) -> Any:
            return case.call_back(host, x)

        wanted = case.expected
        for label, program, operand in (
            ("an operand", jax.jit(plain), jax.device_put(case.operand, there)),
            ("a result", jax.jit(plain, in_shardings=sharding, out_shardings=there), case.operand),
        ):
            seen.clear()
            where = f"{label} in {kind}"
            try:
                result = program(operand)
                found = np.asarray(result)
                case.implementation.barrier()
            except Exception as error:
                case.wrong("error", stage_of(error), f"{where}: {summary(error)}")
                continue
            if not np.array_equal(found, wanted):
                case.wrong("result", Stage.RESULT, f"{where}: {found.tolist()}, not {wanted.tolist()}")
            if label == "a result" and result.sharding.memory_kind != kind:
                case.wrong("result", Stage.RESULT, f"{where}: it is in {result.sharding.memory_kind}")
            if not seen or any(not np.array_equal(each, case.operand) for each in seen):
                case.wrong("wrong operand", Stage.CALLBACK, f"{where}: the callback saw {seen}")
    if case.layout == "jit":
        _several_results(case)


def _several_results(case: Case) -> None:
    """Of several results each is in its own kind of memory, whoever names that."""
    device = case.devices[0]
    here = device.default_memory().kind
    there = next((memory.kind for memory in device.addressable_memories() if memory.kind != here), here)
    placed = SingleDeviceSharding(device, memory_kind=there)
    for wanted in ([there, here, there], [here, here, there]):

        def products(x: Any) -> list[Any]:
            called = case.call_back(add_one, x)
            return [called * number for number in (2, 3, 4)]

        def moved(x: Any, wanted: Any = wanted) -> list[Any]:
            pairs = zip(products(x), wanted, strict=True)
            return [jax.device_put(each, placed) if kind == there else each for each, kind in pairs]

        shardings = [placed if kind == there else SingleDeviceSharding(device) for kind in wanted]
        for program in (jax.jit(moved), jax.jit(products, out_shardings=shardings)):
            with case.part(f"results in {wanted}"):
                results = program(case.operand)
                case.gives([case.expected * np.float32(number) for number in (2, 3, 4)], lambda r=results: r)
                case.same("result", Stage.RESULT, [each.sharding.memory_kind for each in results], wanted)
