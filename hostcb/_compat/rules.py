"""The tables in which JAX looks up the rules of a primitive: they are in public modules, but undocumented."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .registry import Cost, Entry, called_with, private


def _table(place: str, use: str, without: str, promises: tuple[str, ...], cost: Cost) -> Entry:
    return private(f"jax.interpreters.{place}", use, without, promises, cost, attributes=("__setitem__",))


JVPS = _table(
    "ad:primitive_jvps",
    "Differentiates a callback.",
    "JAX refuses to differentiate programs with callbacks.",
    ("H6", "H8"),
    Cost.SOME,
)
TRANSPOSES = _table(
    "ad:primitive_transposes",
    "Transposes a callback.",
    "JAX refuses to transpose programs with callbacks.",
    ("H6",),
    Cost.SOME,
)
BATCHERS = _table(
    "batching:primitive_batchers", "Batches a callback.", "JAX refuses vmap of callbacks.", ("H7", "X2"), Cost.SOME
)
PARTIAL_EVALUATIONS = _table(
    "partial_eval:custom_partial_eval_rules",
    "Keeps the known half of a tap of tangents known.",
    "A tap of tangents could run too late.",
    ("H6", "H16"),
    Cost.EFFECTS,
)
CHECKPOINTS = _table(
    "partial_eval:partial_eval_jaxpr_custom_rules",
    "Says what a checkpoint does with a callback.",
    "A callback in a checkpoint could run more or less often than it should.",
    ("H6", "X4"),
    Cost.EFFECTS,
)
_REGISTER_LOWERING = private(
    "jax.interpreters.mlir:register_lowering",
    "Lowers a callback.",
    "hostcb cannot lower a callback.",
    ("H1", "X1"),
    Cost.ALL,
    called_with(2, "cacheable"),
)


def set_rule(table: Entry, primitive: Any, rule: Callable[..., Any]) -> None:
    """Let JAX find `rule` for `primitive` in `table`, if hostcb knows the table."""
    if table.holds:
        table.value[primitive] = rule


def has_rule(table: Entry, primitive: Any) -> bool:
    return table.holds and primitive in table.value


def register_lowering(primitive: Any, rule: Callable[..., Any], **options: Any) -> None:
    """Let JAX lower `primitive` by `rule`; without this function of JAX, every callback is refused."""
    if _REGISTER_LOWERING.holds:
        _REGISTER_LOWERING.value(primitive, rule, **options)


def with_first(rule: Callable[..., Any], first: Any) -> Callable[..., Any]:
    """Return a rule whose first argument is given. It is a function: pickle finds it by its name, and no partial."""
    return lambda *args, **params: rule(first, *args, **params)
