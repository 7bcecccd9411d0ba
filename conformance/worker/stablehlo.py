"""Reads a lowered program into the record that the oracle judges, by the bindings of MLIR that jaxlib has."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from jax.interpreters.mlir import ir

from ..oracle.lowered import Block, Callback, Channel, Layouts, Module, Operation, Placement, Sharding, Value
from ..oracle.lowered_checks import SITE_END, SITE_MARK

_OF_STABLEHLO = ("custom_call", "send", "recv", "create_token", "after_all", "optimization_barrier", "return")
_READ = {*(f"stablehlo.{name}" for name in _OF_STABLEHLO), "sdy.return", "func.return", "func.call"}
"""Beside operations with regions; the others compute, and do nothing with tokens."""

_CONFIGURATIONS = ("mhlo.backend_config", "backend_config")
"""What holds the attributes of a custom call: JAX writes the first, since the second takes a text alone."""


def read_module(module: Any, callbacks: Sequence[Callback] | None = None) -> Module:
    """The record of a module of JAX's, as `Lowered.compiler_ir` returns it."""
    return _Reader(module).module(callbacks)


class _Reader:
    def __init__(self, module: Any) -> None:
        self._module = module
        self._values: dict[Any, Value] = {}
        self._meshes: dict[str, Any] = {}

    def module(self, callbacks: Sequence[Callback] | None) -> Module:
        functions: dict[str, Block] = {}
        operations = [*self._module.body.operations]
        for one in operations:
            if one.operation.name == "sdy.mesh":
                self._meshes[one.attributes["sym_name"].value] = one.operation
        for one in operations:
            if one.operation.name == "func.func" and len(one.regions[0].blocks):
                functions[one.attributes["sym_name"].value] = self._block(one.regions[0].blocks[0])
        attributes = self._module.operation.attributes
        counts = [attributes[name].value for name in ("mhlo.num_partitions", "mhlo.num_replicas") if name in attributes]
        return Module(functions, math.prod(counts), callbacks)

    def _block(self, block: Any) -> Block:
        arguments = tuple(self._value(value) for value in block.arguments)
        operations = (one.operation for one in block.operations)
        read = (self._operation(one) for one in operations if len(one.regions) or one.name in _READ)
        return Block(arguments, tuple(read))

    def _operation(self, one: Any) -> Operation:
        attributes = one.attributes
        name = one.name
        common = {
            "name": name,
            "operands": tuple(self._value(value) for value in one.operands),
            "results": tuple(self._value(value) for value in one.results),
            "blocks": tuple(self._block(block) for region in one.regions for block in region.blocks),
        }
        if name == "func.call":
            return Operation(**common, callee=attributes["callee"].value)
        if name == "stablehlo.custom_call":
            return Operation(
                **common,
                callee=attributes["call_target_name"].value,
                site=_site(one),
                # What has its default may be absent.
                side_effect="has_side_effect" in attributes and attributes["has_side_effect"].value,
                api_version=attributes["api_version"].value if "api_version" in attributes else 1,
                typed=any(isinstance(attributes[key], ir.DictAttr) for key in _CONFIGURATIONS if key in attributes),
                sharding=self._sharding(attributes),
                layouts=_layouts(attributes),
                aliases=_aliases(attributes),
            )
        if name in ("stablehlo.send", "stablehlo.recv"):
            handle = re.search(r"handle = (\d+), type = (\d+)", str(attributes["channel_handle"]))
            return Operation(
                **common,
                site=_site(one),
                side_effect=True,
                sharding=self._sharding(attributes),
                channel=Channel(int(handle[1]), int(handle[2])) if handle else None,
                host_transfer="is_host_transfer" in attributes and attributes["is_host_transfer"].value,
                attributes=_frontend(attributes),
            )
        return Operation(**common)

    def _value(self, value: Any) -> Value:
        found = self._values.get(value)
        if found is None:
            found = self._values[value] = Value(len(self._values), str(value.type))
        return found

    def _sharding(self, attributes: Any) -> Sharding | None:
        if "sdy.sharding" in attributes:
            text = str(attributes["sdy.sharding"])
            if not re.search(r"<@", text):
                # A list of none, as of an operation without results: the partitioner then finds no sharding.
                return None
            for mesh in dict.fromkeys(re.findall(r"@([\w.]+)", text)):
                device = re.search(r"device_ids=\[(\d+)\]", str(self._meshes[mesh])) if mesh in self._meshes else None
                if device:
                    return Sharding(Placement.ONE_DEVICE, int(device[1]), text)
            return Sharding(Placement.EVERYWHERE, None, text)
        if "mhlo.sharding" in attributes:
            text = attributes["mhlo.sharding"].value
            maximal = re.findall(r"maximal device=(\d+)", text)
            if maximal:
                return Sharding(Placement.ONE_DEVICE, int(maximal[0]), text)
            manual = "manual" in text
            return Sharding(Placement.MANUAL if manual else Placement.EVERYWHERE, None, text)
        return None


def _site(one: Any) -> str | None:
    found = re.search(rf"{SITE_MARK}(\w+?){SITE_END}", str(one.location))
    return found[1] if found else None


def _layouts(attributes: Any) -> Layouts | None:
    if "operand_layouts" not in attributes or "result_layouts" not in attributes:
        return None
    return Layouts(_orders(attributes["operand_layouts"]), _orders(attributes["result_layouts"]))


def _orders(layouts: Any) -> tuple[tuple[int, ...], ...]:
    # The elements of an empty one cannot be asked for in every release.
    return tuple(tuple(int(one) for one in layout) if len(layout) else () for layout in layouts)


def _aliases(attributes: Any) -> tuple[tuple[int, int], ...]:
    if "output_operand_aliases" not in attributes:
        return ()
    found = []
    for alias in attributes["output_operand_aliases"]:
        text = str(alias)
        operand = re.search(r"operand_index = (\d+)", text)
        result = re.search(r"output_tuple_indices = \[(\d*)\]", text)
        if operand and result:
            found.append((int(operand[1]), int(result[1] or 0)))
    return tuple(found)


def _frontend(attributes: Any) -> dict[str, str]:
    if "mhlo.frontend_attributes" not in attributes:
        return {}
    found = {}
    for each in attributes["mhlo.frontend_attributes"]:
        # Iterating yields names or named attributes, by release.
        name = each if isinstance(each, str) else each.name
        found[name] = attributes["mhlo.frontend_attributes"][name].value
    return found
