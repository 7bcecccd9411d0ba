"""The text of a program's function, in plain JAX.

The text is the program's only form: with an implementation's callbacks it is what is tested, with neutral marks it is
traced for the oracle, and with a preamble it is the standalone program. The names that it uses are those of `NAMES`.
"""

from __future__ import annotations

import json

from .description import (
    MODULUS,
    MOST_TRIPS,
    PASS_DERIVATIVES,
    WIDTH,
    Block,
    Branch,
    Call,
    Collective,
    Compute,
    Loop,
    Program,
    Statement,
    Wrapped,
)

OPERATIONS: dict[str, tuple[str, str]] = {
    # The types of the operands and of the result, and the expression.
    "add": ("ff f", "wrap({0} + {1})"),
    "subtract": ("ff f", "wrap({0} - {1})"),
    "multiply": ("ff f", "wrap({0} * {1})"),
    "larger": ("ff f", "lax.select({0} > {1}, {0}, {1})"),
    "twice": ("f f", "wrap({0} + {0})"),
    "one_more": ("f f", "wrap({0} + 1)"),
    "add_vectors": ("vv v", "wrap({0} + {1})"),
    "multiply_vectors": ("vv v", "wrap({0} * {1})"),
    "scale": ("fv v", "wrap({0} * {1})"),
    "sum": ("v f", "wrap(jnp.sum({0}))"),
    "spread": ("f v", f"lax.broadcast({{0}}, ({WIDTH},))"),
    "turn": ("v v", "lax.concatenate([{0}[1:], {0}[:1]], 0)"),
    "pick": ("vi f", f"lax.dynamic_slice({{0}}, (lax.clamp(0, {{1}}, {WIDTH - 1}),), (1,))[0]"),
    "to_whole": ("f i", "{0}.astype(int32)"),
    "to_float": ("i f", "{0}.astype(float32)"),
    "add_whole": ("ii i", "wrap({0} + {1})"),
    "next_whole": ("i i", "wrap({0} + 1)"),
    "minus_whole": ("i i", "-{0}"),
    "stop": ("f f", "lax.stop_gradient({0})"),
    "triple": ("f f", "{0} * 3"),
    "negative": ("f f", "-{0}"),
}
"""`triple` and `negative` are linear, for tangents; the derivative of `wrap` is 1 where it is used."""

DRAWN = tuple(name for name in OPERATIONS if name not in ("triple", "negative"))

HELPERS = f"""\
def wrap(x):
    return lax.rem(x, x.dtype.type({MODULUS}))


def trips(i):
    return lax.clamp(0, lax.rem(i, {MOST_TRIPS + 1}), {MOST_TRIPS})
"""


VALUE_AND_JVP = """\
def value_and_jvp(function):
    def derived(where, operand, *others):
        *others, tangent = others
        return jax.jvp(lambda one: function(where, one, *others), (operand,), (tangent,))

    return derived
"""


def function_of(program: Program) -> str:
    """The text of `program(where, ...)`, whose operands are the device's number and the inputs."""
    return HELPERS + "\n\n" + "\n".join(_function("program", ("where", *program.body.parameters), program.body, 0))


def _function(name: str, parameters: tuple[str, ...], block: Block, derivatives: int) -> list[str]:
    return [
        f"def {name}({', '.join(parameters)}):",
        *_indented(_lines(block, derivatives)),
        f"    return {_tuple(block.results)}",
    ]


def _lines(block: Block, derivatives: int) -> list[str]:
    return [line for statement in block.statements for line in _statement(statement, derivatives)]


def _statement(one: Statement, derivatives: int) -> list[str]:
    if isinstance(one, Compute):
        return [f"{one.target} = {OPERATIONS[one.operation][1].format(*one.operands)}"]
    if isinstance(one, Collective):
        return [f"{one.target} = {one.operation}({one.operand})"]
    if isinstance(one, Call):
        return [_call(one, derivatives)]
    if isinstance(one, Loop):
        return _loop(one, derivatives)
    if isinstance(one, Branch):
        return _branch(one, derivatives)
    return _wrapped(one, derivatives)


def _call(one: Call, derivatives: int) -> str:
    operands = one.operands
    if derivatives and one.kind not in PASS_DERIVATIVES:
        operands = tuple(f"lax.stop_gradient({operand})" for operand in operands)
    tree = {
        "tuple": _tuple(operands),
        "list": f"[{', '.join(operands)}]",
        "dict": "{" + ", ".join(f'"{"abc"[place]}": {operand}' for place, operand in enumerate(operands)) + "}",
    }[one.tree]
    return f"{one.target} = {one.kind}({one.label}, where, {tree}, {json.dumps(one.vmap_method)})"


def _loop(one: Loop, derivatives: int) -> list[str]:
    name, carry = f"_{one.targets[0]}", _tuple(one.carry)
    trips = str(one.trips) if isinstance(one.trips, int) else f"trips({one.trips})"
    parameters, results = one.body.parameters, one.body.results
    lines = _lines(one.body, derivatives)
    if one.kind == "fori":
        return [
            f"def body{name}({parameters[0]}, carry):",
            *_indented([f"{_tuple(parameters[1:])} = carry", *lines, f"return {_tuple(results)}"]),
            f"{_tuple(one.targets)} = lax.fori_loop(0, {trips}, body{name}, {carry})",
        ]
    if one.kind == "scan":
        carried, element, stacked, targets = parameters, "_", "None", one.targets
        last, over = "_", f"None, length={one.trips}"
        if one.sliced:
            carried, element, results, stacked = parameters[:-1], parameters[-1], results[:-1], results[-1]
            targets, last, over = targets[:-1], targets[-1], one.sliced
        return [
            f"def body{name}(carry, {element}):",
            *_indented([f"{_tuple(carried)} = carry", *lines, f"return {_tuple(results)}, {stacked}"]),
            f"{_tuple(targets)}, {last} = lax.scan(body{name}, {carry}, {over})",
        ]
    limit = [f"limit{name} = {trips}"]
    condition = one.condition
    if condition is None:
        asked = [f"return carry[0] < limit{name}"]
    else:
        step = f"{condition.parameters[0]}, {_tuple(condition.parameters[1:])} = carry"
        goes_on = f"return ({condition.parameters[0]} < limit{name}) & ({condition.results[0]} > 0)"
        asked = [step, *_lines(condition, derivatives), goes_on]
    step = parameters[0]
    return [
        *limit,
        f"def condition{name}(carry):",
        *_indented(asked),
        f"def body{name}(carry):",
        *_indented([f"{step}, {_tuple(parameters[1:])} = carry", *lines, f"return {step} + 1, {_tuple(results)}"]),
        f"_, {_tuple(one.targets)} = lax.while_loop(condition{name}, body{name}, (int32(0), {carry}))",
    ]


def _branch(one: Branch, derivatives: int) -> list[str]:
    names = [f"branch_{one.targets[0]}_{number}" for number in range(len(one.branches))]
    lines = [
        line
        for name, block in zip(names, one.branches, strict=True)
        for line in _function(name, block.parameters, block, derivatives)
    ]
    operands = "".join(f", {operand}" for operand in one.operands)
    if len(names) == 2:
        return [*lines, f"{_tuple(one.targets)} = lax.cond({one.on} > 0, {names[1]}, {names[0]}{operands})"]
    index = f"lax.clamp(0, {one.on}, {len(names) - 1})"
    return [*lines, f"{_tuple(one.targets)} = lax.switch({index}, [{', '.join(names)}]{operands})"]


def _wrapped(one: Wrapped, derivatives: int) -> list[str]:
    name = f"function_{one.targets[0]}"
    inner = derivatives + (one.kind in ("grad", "jvp"))
    function = _function(name, ("where", *one.body.parameters), one.body, inner)
    operands = f"(where, {', '.join(one.operands)})"
    targets = _tuple(one.targets)
    if one.kind in ("jit", "checkpoint"):
        return [*function, f"{targets} = {one.kind}({name}){operands}"]
    if one.kind == "vmap":
        axes = _tuple(("None", *("0" if operand[0] == "v" else "None" for operand in one.operands)))
        return [*function, f"{targets} = vmap({name}, {axes}){operands}"]
    if one.kind == "grad":
        function[-1] = f"    return {one.body.results[0]}"
        return [*function, f"{targets} = value_and_grad({name}, 1){operands}"]
    if one.kind == "jvp":
        function[-1] = f"    return {one.body.results[0]}"
        return [*function, f"{targets} = value_and_jvp({name}){operands}"]
    assert one.rule is not None
    function[-1] = f"    return {one.body.results[0]}"
    rule, (operand, slope) = one.rule, one.rule.parameters
    # The derivative that has a rule does not go through it, but for tangents. The derivatives around it do.
    lines = _indented(_lines(rule, max(derivatives - 1, 0)))
    if one.kind == "custom_vjp":
        return [
            "@custom_vjp",
            *function,
            f"def forward_{name}(where, {operand}):",
            f"    return {name}(where, {operand}), (where, {operand})",
            f"def backward_{name}(kept, {slope}):",
            f"    where, {operand} = kept",
            *lines,
            f"    return None, {rule.results[0]}",
            f"{name}.defvjp(forward_{name}, backward_{name})",
            f"{one.targets[0]} = {name}{operands}",
        ]
    return [
        "@custom_jvp",
        *function,
        f"@{name}.defjvp",
        f"def rule_{name}(primals, tangents):",
        f"    (where, {operand}), (_, {slope}) = primals, tangents",
        f"    value = {name}(where, {operand})",
        *lines,
        f"    return value, {rule.results[0]}",
        f"{one.targets[0]} = {name}{operands}",
    ]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _tuple(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
