"""JAX's sets of effect classes: each set lists the effects that one transformation accepts."""

from __future__ import annotations

from .registry import Cost, Entry, called_with, private


def _effect_set(name: str, without: str, promises: tuple[str, ...], cost: Cost) -> Entry:
    return private(
        f"jax._src.effects:{name}",
        "Tells JAX what the effects of callbacks may pass.",
        without,
        promises,
        cost,
        methods={"add_type": called_with(1)},
    )


_LOWERABLE = _effect_set(
    "lowerable_effects", "JAX refuses to lower programs with callbacks.", ("H1", "X3", "X4"), Cost.EFFECTS
)
_CONTROL_FLOW = _effect_set(
    "control_flow_allowed_effects", "JAX refuses callbacks with effects in control flow.", ("H4", "X1"), Cost.SOME
)
_CUSTOM_DERIVATIVES = _effect_set(
    "custom_derivatives_allowed_effects",
    "JAX refuses callbacks with effects in custom_jvp and custom_vjp.",
    ("H4", "H6"),
    Cost.SOME,
)
# JAX's own `io_callback` is not in this set.
_KEPT = _effect_set(
    "partial_eval_kept_effects",
    "JAX drops a callback in a scan that is differentiated if nobody uses its result.",
    ("H4", "H6", "X3"),
    Cost.EFFECTS,
)
_ORDERED = _effect_set(
    "ordered_effects", "JAX gives ordered callbacks no tokens, so they have no order.", ("H5",), Cost.EFFECTS
)
_SHARDABLE = _effect_set(
    "shardable_ordered_effects", "JAX refuses ordered callbacks on several devices.", ("H5", "H9", "H10"), Cost.SOME
)
_REMATERIALISED = _effect_set(
    "remat_allowed_effects", "JAX refuses callbacks in a checkpoint that is differentiated.", ("H6", "X4"), Cost.SOME
)


def register_effect(effect_class: type, *, ordered: bool = False, rematerialised: bool = True) -> None:
    """Let every transformation accept `effect_class`; an `ordered` effect has one order on each device.

    JAX refuses an effect that is not `rematerialised` in a checkpoint that is differentiated.
    """
    sets = [_LOWERABLE, _CONTROL_FLOW, _CUSTOM_DERIVATIVES, _KEPT]
    if ordered:
        sets += [_ORDERED, _SHARDABLE]
    if rematerialised:
        sets.append(_REMATERIALISED)
    for entry in sets:
        if entry.holds:
            entry.value.add_type(effect_class)
