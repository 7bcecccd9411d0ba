"""JAX's primitives that hold a function as a parameter, and do not report its effects."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .registry import Cost, Entry, private, probe_late, with_parameters


def _primitive(name: str, place: str, *, deferred: bool) -> Entry:
    return private(
        place,
        f"Lets a {name} say the effects of callbacks in its function.",
        f"A callback in the function of a {name} could be dropped where nobody uses the result.",
        ("H4", "X3"),
        Cost.SOME,
        attributes=("abstract_eval", "def_effectful_abstract_eval"),
        deferred=deferred,
    )


_PRIMITIVES = {
    "linear_call": _primitive("linear_call", "jax._src.custom_derivatives:linear_call_p", deferred=False),
    "composite": _primitive("composite", "jax._src.lax.lax:composite_p", deferred=False),
    "custom_partitioning": _primitive(
        "custom_partitioning", "jax._src.custom_partitioning:custom_partitioning_p", deferred=True
    ),
    "pallas_call": _primitive("pallas_call", "jax._src.pallas.pallas_call:pallas_call_p", deferred=True),
}
# JAX's lowering rules that hostcb wraps.
_LOWERINGS = {
    "composite": private(
        "jax._src.lax.lax:_composite_lowering",
        "Gives the token of ordered callbacks to the function of a composite.",
        "Ordered callbacks in a composite have no token.",
        ("H4", "H5"),
        Cost.SOME,
        with_parameters("ctx"),
    ),
    "custom_partitioning": private(
        "jax._src.custom_partitioning:_custom_partitioning_lowering_rule",
        "Refuses callbacks in a custom_partitioning on several devices, where JAX drops their handlers.",
        "A callback in a function with custom_partitioning could end the process.",
        ("H4",),
        Cost.SOME,
        with_parameters("ctx", "call"),
        deferred=True,
    ),
}
# The public modules that import the slow modules of the deferred primitives.
_BROUGHT_BY = {
    "custom_partitioning": "jax.experimental.custom_partitioning",
    "pallas_call": "jax.experimental.pallas",
}
# The parameters that may hold the function.
HOLDING_FUNCTIONS = {
    "linear_call": ("callee",),
    "composite": ("call_jaxpr", "jaxpr"),
    "custom_partitioning": ("call",),
    "pallas_call": ("jaxpr",),
}
_unknown: list[tuple[str, Entry]] = []


# The modules that have a primitive, of which one must have been imported; none for those that JAX itself imports.
_MODULES = {name: (brought_by, _PRIMITIVES[name].module) for name, brought_by in _BROUGHT_BY.items()}


def imported(names: Iterable[str]) -> list[str]:
    """Those of `names` whose module has been imported."""
    # Every callback that is traced asks this.
    found = []
    for name in names:
        modules = _MODULES.get(name)
        if modules is None or modules[0] in sys.modules or modules[1] in sys.modules:
            found.append(name)
    return found


def holding_function(name: str) -> tuple[Any, Any]:
    """A primitive and its lowering rule.

    The primitive is None if this JAX has it in a way unknown to hostcb. The rule is None if hostcb need not wrap it.
    """
    needed = [table[name] for table in (_PRIMITIVES, _LOWERINGS) if name in table]
    for entry in needed:
        probe_late(entry)
        if entry.lost:
            refuse_inside(name, entry)
            return None, None
    return needed[0].value, needed[1].value if len(needed) > 1 else None


def refuse_inside(name: str, entry: Entry) -> None:
    """From now on, refuse callbacks in the function of a primitive."""
    _unknown.append((name, entry))


def check_holders(subject: Any) -> None:
    """Refuse `subject`, a callback that is used now, in the function of a primitive that hostcb does not know.

    No rule sees that function, so this looks on the stack for the functions of JAX that trace it.
    """
    if not _unknown:
        return
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("jax."):
            words = f"{module}.{frame.f_code.co_qualname}".split(".")
            for name, entry in _unknown:
                if name in words:
                    raise entry.refusal(f"{subject}, in the function of a {name},")
        frame = frame.f_back  # type: ignore[assignment]
