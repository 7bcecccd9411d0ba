"""What JAX knows of values before a program runs: which differ among lanes, and through which a derivative goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .description import WITH_RESULTS
from .values import NONE, Flags, lanes_of, perhaps, union, without


def inner(params: Any) -> tuple[Any, Any]:
    """The jaxpr of an equation that calls one, and its constants."""
    jaxpr = params["jaxpr"]
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "jaxpr") else (jaxpr, ())


def scan_counts(params: Any) -> tuple[int, int]:
    """The numbers of the constants and of the carried values of a scan."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # JAX 0.12 has them as a tree of the operands.
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)


def of_jaxpr(jaxpr: Any, flags: Sequence[Flags]) -> list[Flags]:
    """The flags of a jaxpr's results, from those of its operands."""
    known: dict[Any, Flags] = dict(zip(jaxpr.invars, flags, strict=True))

    def read(variable: Any) -> Flags:
        return NONE if hasattr(variable, "val") else known.get(variable, NONE)

    for equation in jaxpr.eqns:
        known.update(zip(equation.outvars, of_equation(equation, [*map(read, equation.invars)]), strict=True))
    return [*map(read, jaxpr.outvars)]


def of_equation(equation: Any, flags: list[Flags]) -> list[Flags]:
    name, params = equation.primitive.name, equation.params
    if name in ("jit", "pjit", "closed_call", "remat2", "checkpoint"):
        found = of_jaxpr(inner(params)[0], flags)
    elif name == "scan":
        found = of_scan(params, flags)
    elif name == "while":
        found = of_while(params, flags)[0]
    elif name == "cond":
        found = of_branches(params["branches"], flags)
    elif name == "mark_vmap":
        axis = params["axis"]
        inside = [one | {axis} if each else one for one, each in zip(flags, params["batched"], strict=True)]
        found = [without(one, [axis]) for one in of_jaxpr(params["jaxpr"].jaxpr, inside)]
    elif name in ("mark_grad", "mark_jvp"):
        found = [*of_jaxpr(params["jaxpr"].jaxpr, flags[: len(params["jaxpr"].in_avals)]), perhaps(union(flags))]
    elif name == "mark_callback":
        found = [lanes_of(union(flags)) if params["kind"] in WITH_RESULTS else flags[1]]
    elif name == "mark_custom":
        found = [one | union(flags) for one in of_jaxpr(params["jaxpr"].jaxpr, flags)]
    else:
        taken = lanes_of(union(flags)) if name == "stop_gradient" else union(flags)
        found = [taken] * len(equation.outvars)
    return [
        one if np.issubdtype(variable.aval.dtype, np.floating) else lanes_of(one)
        for one, variable in zip(found, equation.outvars, strict=True)
    ]


def of_branches(branches: Any, flags: list[Flags]) -> list[Flags]:
    # All operands of a batched cond are batched: it becomes a choice among the results of all branches.
    inside = [one | lanes_of(flags[0]) for one in flags[1:]]
    each = [of_jaxpr(branch.jaxpr, inside) for branch in branches]
    return [union(results) | lanes_of(flags[0]) for results in zip(*each, strict=True)]


def of_scan(params: Any, flags: list[Flags]) -> list[Flags]:
    constants, carried = scan_counts(params)
    carry = flags[constants : constants + carried]
    while True:
        results = of_jaxpr(params["jaxpr"].jaxpr, [*flags[:constants], *carry, *flags[constants + carried :]])
        grown = [one | more for one, more in zip(carry, results, strict=False)]
        if grown == carry:
            return [*grown, *results[carried:]]
        carry = grown


def of_while(params: Any, flags: list[Flags]) -> tuple[list[Flags], Flags]:
    """The flags of the carried values, and of the predicate."""
    asked, bodied = params["cond_nconsts"], params["body_nconsts"]
    of_condition, of_body, carry = flags[:asked], flags[asked : asked + bodied], flags[asked + bodied :]
    while True:
        (predicate,) = of_jaxpr(params["cond_jaxpr"].jaxpr, [*of_condition, *carry])
        results = of_jaxpr(params["body_jaxpr"].jaxpr, [*of_body, *carry])
        grown = [one | more | lanes_of(predicate) for one, more in zip(carry, results, strict=True)]
        if grown == carry:
            return grown, predicate
        carry = grown


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """All equations, with those of inner jaxprs."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                if hasattr(one, "eqns"):
                    yield from equations_of(one)
                elif hasattr(one, "jaxpr"):
                    yield from equations_of(one.jaxpr)
