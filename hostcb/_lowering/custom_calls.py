"""The custom call by which a program calls a handler.

JAX's public builder makes the first custom call of each form. A program may have hundreds of the same form, so hostcb
makes the others from the first one's attributes, with the index of another handler. The index is an attribute of the
operation, or the end of its target's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from .. import _compat
from .._threads.foreign import add_host_callback

# The attribute of the operation that names the handler to call.
_INDEX = "index"


@dataclasses.dataclass(frozen=True)
class Form:
    """The common part of all custom calls to handlers of the same signature."""

    name: str
    result_types: list[Any]
    attributes: dict[str, Any]
    # The attribute that names the handler, and its other entries; none if it is the target's name.
    telling: str
    others: dict[str, Any]

    @classmethod
    def of(cls, op: Any, numbered_target: str | None) -> Form | None:
        """Read the form of an operation; None if this JAX stores the index in a way that hostcb does not know."""
        attributes = {name: op.attributes[name] for name in _names(op.attributes)}
        types = [result.type for result in op.results]
        for name, attribute in attributes.items():
            if numbered_target is not None:
                if isinstance(attribute, mlir.ir.StringAttr) and attribute.value == numbered_target:
                    return cls(op.operation.name, types, attributes, name, {})
            elif isinstance(attribute, mlir.ir.DictAttr) and _INDEX in attribute:
                others = {each: attribute[each] for each in _names(attribute) if each != _INDEX}
                return cls(op.operation.name, types, attributes, name, others)
        return None

    def build(self, operands: Sequence[Any], index: Any, numbered_target: str | None) -> Any:
        if numbered_target is not None:
            told: Any = mlir.ir.StringAttr.get(numbered_target)
        else:
            told = mlir.ir.DictAttr.get({**self.others, _INDEX: mlir.ir_attribute(index)})
        attributes = {**self.attributes, self.telling: told}
        return mlir.ir.Operation.create(self.name, self.result_types, operands, attributes)


def _names(attributes: Any) -> list[str]:
    """Return the names in an MLIR dictionary; iterating it yields names or named attributes, by release."""
    return [each if isinstance(each, str) else each.name for each in attributes]


class Module:
    """hostcb's caches for one module while JAX lowers it."""

    def __init__(self) -> None:
        # Equations with equal parameters share a `Crossing` and its handler; see `rule`.
        self.crossings: dict[Any, Any] = {}
        self._forms: dict[Any, Form | None] = {}
        self._indices: dict[Callable[..., Any], Any] = {}

    def index_of(self, context: Any, handler: Callable[..., Any]) -> Any:
        """Return the index of a handler, and keep the handler alive as long as the executable."""
        index = self._indices.get(handler)
        if index is None:
            add_host_callback(context, handler)
            index = self._indices[handler] = np.uint64(len(context.host_callbacks) - 1)
        return index

    def emit(
        self, form_key: Any, make: Callable[[], Any], operands: Sequence[Any], index: Any, numbered_target: str | None
    ) -> Any:
        """Emit an operation of the form that `form_key` identifies; `make` emits the first of that form."""
        form = self._forms.get(form_key)
        if form is not None:
            return form.build(operands, index, numbered_target)
        op = make()
        self._forms[form_key] = Form.of(op, numbered_target)
        return op


def module_of(module_context: Any) -> Module:
    """Return the caches for the module that JAX is lowering; they live as long as its lowering."""
    memory = _compat.memory_of(module_context)
    # Parts of one module may run on different meshes, and their values cross in different ways.
    key = (Module, module_context.axis_context)
    module: Module | None = memory.get(key)
    if module is None:
        module = memory[key] = Module()
    return module


def custom_call(
    context: Any,
    target: str,
    handler: Callable[..., Any],
    operands: Sequence[Any],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    sharding: Any,
    *,
    side_effect: bool = True,
    aliases: Sequence[tuple[int, int]] = (),
    numbered: Callable[[int], str | None] | None = None,
) -> Sequence[Any]:
    """Emit a custom call to `handler`, and keep the handler alive as long as the executable.

    Where `numbered` has a target for the handler's index, that is used, and the operation has no attribute for it.
    """
    module_context = context.module_context
    module = module_of(module_context)
    index = module.index_of(module_context, handler)
    numbered_target = None if numbered is None else numbered(int(index))

    def make() -> Any:
        inner = context.replace(avals_in=list(avals_in), avals_out=list(avals_out))
        build = jax.ffi.build_ffi_lowering_function(
            numbered_target or target, has_side_effect=side_effect, operand_output_aliases=dict(aliases)
        )
        return build(inner, *operands, **({_INDEX: index} if numbered_target is None else {}))

    form_key = (target, numbered_target is None, tuple(avals_in), tuple(avals_out), side_effect, tuple(aliases))
    op = module.emit(form_key, make, operands, index, numbered_target)
    if sharding is not None:
        _compat.annotate(module_context, op, sharding)
    return list(op.results)
